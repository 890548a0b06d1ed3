# SPDX-License-Identifier: Apache-2.0
"""`ddl serve`: reads jobs from the store, plans, and has the plans carried out.

Design notes
- Each job runs in its own process, with the same coordinator as `ddl elastic run`, and not in a
  thread of the service. So the job outlives the service: a restarted service finds the runs by
  their sockets and continues. A program that breaks its coordinator breaks only one job. The fork
  server of a job needs a process without threads in any case.
- All state is in the store, in the jobs' folders and in the runs. The loop compares the slots that
  the store allocates to a job with the slots that its run holds. So after a crash at any point the
  next turn continues.
- A run gets a slot when no other run holds it any more. An intent is closed when its effect has
  been observed. So an open intent shows which run may hold slots that the store allocates to
  another job.
- A job never runs twice: all its processes hold one lock, see folder.py.
- Slots are on this machine, or on the hosts of agents, see agents.py. With agents, the workers run
  on the agents' hosts, and only the run with its coordinator is here.
- One thread uses the store. Other threads may call `live`, `slots`, `problem`, `planner_age` and
  `wake`.
- While the disk is full, only changes that were not yet stored are lost: each turn is tried again
  until there is room. Running jobs do not need the service during that time.
- The policy uses the steady clock's times, see store.py.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import socket
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ddl_elastic.base.waiting import ready
from ddl_elastic.engines.dialed import job_secret
from ddl_launch.rank import sockets
from ddl_scheduler.base.folder import JobFolder, archive
from ddl_scheduler.base.requests import JobSpec, spec_read
from ddl_scheduler.base.store import (
    ACTIVE,
    UNFINISHED,
    JobRecord,
    JobState,
    Store,
    StoreError,
    disk_trouble,
)
from ddl_scheduler.planning.jobs import PolicyJob, PolicySlot, Schedule, Settings, Tenant
from ddl_scheduler.planning.policy import plan_make
from ddl_scheduler.runner.protocol import RunSpec
from ddl_scheduler.runner.starter import Starter
from ddl_scheduler.service.agents import AgentPool
from ddl_scheduler.service.job_stats import JobStats, job_of
from ddl_scheduler.service.runs import Run, run_adopt

PLAN_EVERY = 0.5  # seconds between two plans, at least
LOOK_EVERY = 0.5  # seconds between two reads of the store, at most
COUNT_EVERY = 10.0  # seconds after which slot-seconds are added up and a plan is made
ENDING = 0.02  # seconds between two checks of a run that is about to end
TROUBLE = 1.0  # seconds until a failed write is tried again
ARCHIVE_EVERY = 10.0  # seconds between two checks for finished jobs to archive
CRASHES = 3  # a job fails after that many crashes without a step in between

_log = logging.getLogger("ddl_scheduler")


class SlotView(NamedTuple):
    """A slot in the answers to requests."""

    id: str
    host: str
    state: str  # free, starting, used, draining
    job: int | None  # the job that has it, or that still holds it


class Service:
    """The service's loop. Use it as a context manager; jobs continue when it is closed.

    path       the store's file
    slots      the slots of this machine
    starter    starts runs
    on_action  called with each statement and before and after each call of a run, for tests
    token      the secret with which agents authenticate; "" if there are no agents
    users      the user that runs the jobs of each tenant; {} if the service's user runs them all
    agents     creates the pool of agents, from the names of the slots that the store knows
    """

    def __init__(
        self,
        path: Path,
        slots: Sequence[PolicySlot],
        starter: Starter,
        settings: Settings | None = None,
        on_action: Callable[[str], object] = lambda _: None,
        token: str = "",
        users: Mapping[str, str] | None = None,
        agents: Callable[[Collection[str]], AgentPool] | None = None,
    ) -> None:
        self._path, self._slots, self._starter = path, slots, starter
        self._settings, self._action = settings or Settings(), on_action
        self._store = Store(path, on_action)
        self._token, self._users = token, users or {}
        known = [slot for slots in self._store.slots().values() for slot in slots]
        self._agents = agents(known) if agents else None
        self._records: dict[int, JobRecord] = {}  # unfinished jobs
        self._given: dict[int, tuple[str, ...]] = {}  # slots by job, as the store has it
        self._runs: dict[int, Run] = {}
        self._known: dict[int, JobStats] = {}  # by job
        self._findings: set[tuple[str, float]] = set()  # findings of audits in the store
        # By job: the number of crashes, and the steps at the last one.
        self._crashes: dict[int, tuple[int, int]] = {}
        self._plan = Schedule()
        # Times by the monotonic clock; 0 means at once.
        self._plan_at = self._looked = self._counted = self._archived = 0.0
        self._problem = ""  # the reason why nothing can be written now
        self._no_port = ""  # the reason why no further run can listen for agents
        self._turned = time.monotonic()  # when the last turn ended
        self._plan_again = math.inf
        self._is_due = True  # whether a plan is due
        self._view: Sequence[SlotView] = ()
        self._changed = threading.Lock()  # protects the data that other threads read
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)
        self._adopt()
        self._show()

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for run in self._runs.values():
            run.close()
        if self._agents:
            self._agents.close()
        self._store.close()
        self._woken.close()
        self._wake.close()

    # ---- for other threads ----

    def live(self, job: int) -> dict[str, Any] | None:
        """Return the job's last report, see Job.report. Adds `waiting`, the reason why it has no
        slots, and `deadline_warning` if it may miss its deadline."""
        with self._changed:
            run, plan = self._runs.get(job), self._plan
            found = dict(run.report) if run else {}
        found = found or JobFolder(self._path, job).result().get("report", {})
        if reason := plan.waiting.get(str(job)):
            found["waiting"] = reason
        if danger := plan.deadlines.get(str(job)):
            found["deadline_warning"] = danger
        return found or None

    def slots(self) -> list[SlotView]:
        """Return all slots, with the jobs that have them."""
        with self._changed:
            return list(self._view)

    def problem(self) -> str:
        """Return the problem that prevents writing, such as a full disk; "" if there is none."""
        return self._problem

    def planner_age(self) -> float:
        """Return the seconds since the loop's last iteration. A healthy loop iterates at least once
        a second."""
        return time.monotonic() - self._turned

    def wake(self) -> None:
        """Make the loop read the store again at once."""
        with suppress(BlockingIOError):  # a wake-up is pending already
            self._wake.send(b"w")

    # ---- the loop ----

    def run(self, until: Callable[[], bool]) -> None:
        """Serve until `until()` returns True. `wake()` makes it check again at once."""
        while not until():
            self.turn()

    def turn(self) -> None:
        """Wait for an event or a short time, then handle it. Log a failed write, and try it again
        in the next iteration."""
        self._wait()
        try:
            self._follow(time.time())
            problem = ""
        except (sqlite3.OperationalError, OSError) as error:
            if not (problem := disk_trouble(error)):
                raise
            self._is_due, self._looked = True, 0.0
        if problem != self._problem:
            _log.warning(
                "%s",
                f"the service cannot write: {problem}; it tries again every second"
                if problem
                else "the service can write again",
            )
            self._problem = problem
        self._show()
        self._turned = time.monotonic()

    def _follow(self, now: float) -> None:
        if self._is_due or time.monotonic() >= self._looked + LOOK_EVERY:
            self._look()
        for job, run in self._runs.items():
            self._mark_hosts(job, run.report)
        self._end_runs(now)
        self._look_at_agents()
        if time.monotonic() >= self._next_plan:
            self._make_plan(now)
        self._steer(now)
        self._close_intents()
        if time.monotonic() >= self._archived + ARCHIVE_EVERY and not archive(self._store):
            self._archived = time.monotonic()

    @property
    def _next_plan(self) -> float:
        """The time at which the next plan is due."""
        later = min(self._plan_again, self._counted + COUNT_EVERY)
        return max(self._plan_at + PLAN_EVERY, 0.0 if self._is_due else later)

    def _wait(self) -> None:
        if self._problem:
            time.sleep(TROUBLE)
        now = time.monotonic()
        until = min(self._looked + LOOK_EVERY, self._next_plan)
        if any(run.channel is None for run in self._runs.values()):
            until = min(until, now + ENDING)
        runs = {run.channel: run for run in self._runs.values() if run.channel}
        agents = self._agents.connections if self._agents else []
        waits_for: list[Any] = [self._woken, *runs, *agents]
        for one in ready(waits_for, until - now):
            if one is self._woken:
                self._woken.recv(4096)
                self._looked = 0.0
            elif one in runs:
                self._is_due |= runs[one].hear()
            elif self._agents:
                self._agents.hear(one)

    def _look_at_agents(self) -> None:
        """Update the slots from the agents, and ask the agents to serve the runs that hold their
        slots."""
        if not self._agents:
            return
        self._agents.look()
        slots = self._agents.slots()
        if slots != self._slots:
            with self._changed:
                self._slots = slots
            self._is_due = True
        for run in self._runs.values():
            if run.port and not run.asked:
                self._agents.serve(run.name, run.port, run.held)
        # Otherwise an adopted run has not reported its name.
        if all(run.name for run in self._runs.values()):
            self._agents.drop_others({run.name: run.held for run in self._runs.values()})

    def _is_free(self, slot: str, job: int) -> bool:
        if self._holder(slot) not in (None, job):
            return False
        names = [run.name for run in self._runs.values()]
        return not (self._agents and self._agents.is_stale(slot, names))

    def _adopt(self) -> None:
        """Adopt the runs that an earlier service started. A run that has not reported is assumed to
        hold the slots that the store allocates to it and the slots that it was to release."""
        self._given = self._store.slots()
        intents = self._store.intents()
        jobs = {record.id for record in self._store.jobs(*UNFINISHED)}
        for job in sorted(jobs | {intent.job for intent in intents}):
            stops = [each.slot for each in intents if each.job == job and each.kind == "stop"]
            folder = JobFolder(self._path, job)
            if run := run_adopt(folder, [*self._given.get(job, ()), *stops]):
                self._runs[job] = run
                _log.info("job %d is still running; adopted its run", job)
            elif job in jobs:
                self._settle(job, folder.result(), time.time())

    def _look(self) -> None:
        """Read the store. A plan becomes due if the unfinished jobs have changed."""
        self._looked = time.monotonic()
        found = {r.id: r for r in self._store.jobs(*UNFINISHED)}
        if {k: (r.state, r.spec) for k, r in found.items()} != {
            k: (r.state, r.spec) for k, r in self._records.items()
        }:
            self._is_due = True
        for job in found.keys() - self._records.keys():  # new jobs, or failed jobs that resume
            self._crashes.pop(job, None)
        self._records, self._given = found, self._store.slots()

    # ---- ended runs ----

    def _end_runs(self, now: float) -> None:
        for job, run in list(self._runs.items()):
            if not run.has_ended():
                continue
            result = run.folder.result()
            self._mark_hosts(job, result.get("report", {}))
            is_crash = result.get("state") in ("starting", "running", "lost") and not run.asked
            with self._changed:
                del self._runs[job]
            self._known[job] = run.known
            self._is_due = True
            self._check_ports()
            if not self._settle(job, result, now) and is_crash:
                self._count_crash(job, run.report.get("steps", 0), now)

    def _settle(self, job: int, result: Mapping[str, Any], now: float) -> bool:
        """Record the end of the job if its run reported one. Return whether it did."""
        state = result.get("state")
        if state not in (JobState.DONE, JobState.FAILED):
            return False
        self._move(job, JobState(state), now, str(result.get("why", "")))
        return True

    def _count_crash(self, job: int, steps: int, now: float) -> None:
        count, before = self._crashes.get(job, (0, -1))
        count = count + 1 if steps <= before else 1
        self._crashes[job] = (count, max(steps, before))
        _log.warning("job %d: all processes of its run were killed", job)
        if count >= CRASHES:
            why = f"its processes were killed {CRASHES} times without a step in between"
            self._move(job, JobState.FAILED, now, why)

    def _move(self, job: int, state: JobState, now: float, why: str = "") -> None:
        try:
            self._store.job_move(job, state, now, why)
        except StoreError:  # it was cancelled meanwhile
            return
        finally:
            self._looked = 0.0
        record = self._records.get(job)
        if record:
            self._records[job] = replace(record, state=state)
        self._given = self._store.slots()
        _log.info("job %d is %s%s", job, state, f": {why}" if why else "")

    def _mark_hosts(self, job: int, report: Mapping[str, Any]) -> None:
        """Mark the hosts of workers that an audit has expelled. Plans continue to use these hosts:
        a finding comes from the program of one tenant, which may be wrong about the machine."""
        for event in report.get("events", ()):
            if event["kind"] != "audit" or event["stops"]:
                continue
            for host in event["hosts"]:
                if (host, event["time"]) not in self._findings:
                    self._store.host_mark(host, event["time"], job, event["text"])
                    self._findings.add((host, event["time"]))
                    _log.warning("job %d: %s", job, event["text"])

    # ---- plans ----

    def _make_plan(self, now: float) -> None:
        clock = time.monotonic()
        self._plan_at, self._is_due = clock, False
        self._check_ports()
        portless = self._portless()
        records = [each for each in self._records.values() if each.id not in portless]
        jobs = [job for record in records if (job := self._job(record, now))]
        tenants = [Tenant(*each) for each in self._store.tenants()]
        last = {str(job): slots for job, slots in self._given.items()}
        steady = self._store.steady(now)
        plan = plan_make(jobs, self._slots, tenants, last, steady, self._settings)
        self._plan_again = clock + plan.again - steady
        why = dict.fromkeys(map(str, portless), self._no_port)
        with self._changed:
            self._plan = replace(plan, waiting={**plan.waiting, **why})
        wanted = {int(name): slots for name, slots in plan.slots.items()}
        if wanted == self._given and clock < self._counted + COUNT_EVERY:
            return
        try:
            self._store.plan_write(wanted, now)
        except StoreError as error:  # a job has ended or was cancelled meanwhile
            _log.debug("the plan is outdated: %s", error)
            self._is_due = True
        else:
            self._counted = clock
        self._look()

    def _check_ports(self) -> None:
        """Find out whether a further run can listen for agents."""
        problem = ""
        if self._agents:
            try:
                sockets.listen_at_allowed(lambda port: socket.create_server(("", port))).close()
            except OSError as error:
                problem = str(error.strerror)
        if problem and not self._no_port:
            _log.warning("%s; jobs without a port wait", problem)
        self._no_port = problem

    def _portless(self) -> set[int]:
        """Return the active jobs that cannot start, because no port is free for their runs."""
        waits = {each.id for each in self._records.values() if each.state in ACTIVE}
        return waits - self._runs.keys() if self._no_port else set()

    def _job(self, record: JobRecord, now: float) -> PolicyJob | None:
        if record.state not in ACTIVE:
            return None
        spec = self._spec(record, now)
        run = self._runs.get(record.id)
        known = run.known if run else self._known.get(record.id, JobStats())
        if not spec:
            return None
        job = job_of(record, spec, known)
        return replace(job, deadline=job.deadline + self._store.steady(now) - now)

    def _spec(self, record: JobRecord, now: float) -> JobSpec | None:
        try:
            return spec_read(record.spec)
        except ValueError as error:
            self._move(record.id, JobState.FAILED, now, f"its specification is invalid: {error}")
            return None

    # ---- carrying out plans ----

    def _steer(self, now: float) -> None:
        """Grant the slots that the store allocates to each job, once no other run holds them. Start
        runs if needed, and make runs without slots pause or cancel."""
        for job, run in self._runs.items():
            record = self._records.get(job)
            if record is None or record.state not in UNFINISHED:
                self._ask(run, "cancel")
            elif not self._given.get(job):
                self._ask(run, "pause")
        for record in list(self._records.values()):
            given = self._given.get(record.id, ())
            free = [slot for slot in given if self._is_free(slot, record.id)]
            if not free or record.state not in ACTIVE:
                continue
            if found := self._runs.get(record.id):
                self._grant(found, free)
            elif not self._no_port and self._suffice(record, free, now):
                self._start(record, free, now)

    def _suffice(self, record: JobRecord, free: Collection[str], now: float) -> bool:
        """Return True if the job can begin before other jobs have released the rest of its
        slots."""
        spec = self._spec(record, now)
        given = self._given[record.id]
        return spec is not None and len(free) >= min(len(given), max(1, spec.least))

    def _ask(self, run: Run, what: str) -> None:
        if run.asked not in (what, "cancel"):
            self._action(what)
            run.ask(what)
            self._action(what)

    def _grant(self, run: Run, slots: Collection[str]) -> None:
        if run.takes(slots):
            self._action("grant")
            run.grant(slots)
            self._action("grant")

    def _holder(self, slot: str) -> int | None:
        return next((job for job, run in self._runs.items() if slot in run.held), None)

    def _start(self, record: JobRecord, slots: Sequence[str], now: float) -> None:
        folder = JobFolder(self._path, record.id)
        if self._users and record.tenant not in self._users:
            why = f"tenant {record.tenant} has no user: start the service with --user"
            self._move(record.id, JobState.FAILED, now, f"{why} {record.tenant}=NAME")
            return
        try:
            folder.make()
            lock, run = folder.lock(), ""
            if lock is not None:  # otherwise it runs already, or is about to end
                try:
                    if self._settle(record.id, folder.result(), now):
                        return
                    run = f"{record.id}-{secrets.token_hex(8)}" if self._agents else ""
                    self._order_start(record, slots, folder, lock, run)
                finally:
                    os.close(lock)
        except OSError as error:
            if disk_trouble(error):
                raise
            self._move(record.id, JobState.FAILED, now, f"cannot start it: {error}")
            return
        with self._changed:
            self._runs[record.id] = Run(folder, slots, run)

    def _order_start(
        self, record: JobRecord, slots: Sequence[str], folder: JobFolder, lock: int, run: str
    ) -> None:
        """Start a run. A kill at any point leaves either no run, or one that has the lock and its
        socket."""
        names = [slot.name for slot in self._slots] if not run else []
        path, token = str(self._path.absolute()), job_secret(self._token, run) if run else ""
        user = self._users.get(record.tenant, "")
        order = RunSpec(path, record.id, record.spec, names, sorted(slots), run, token, user)
        # The state that remains if the start gets lost.
        folder.result_write({**folder.result(), "state": "starting"})
        with folder.listen() as listener:
            self._action("start")
            self._starter.start(order, lock, listener)
            self._action("start")

    def _close_intents(self) -> None:
        intents = self._store.intents()
        if not intents:
            return
        slots = self._store.slots()  # read after the intents, so that it is not older
        for intent in intents:
            run, given = self._runs.get(intent.job), slots.get(intent.job, ())
            held = run.held if run else frozenset()
            wants = intent.kind == "start"
            # The intent has had its effect, or a later plan wants the opposite.
            if (intent.slot in held) == wants or (intent.slot in given) != wants:
                self._store.intent_close(intent)

    def _show(self) -> None:
        given = {slot: job for job, slots in self._given.items() for slot in slots}
        view = []
        for slot in self._slots:
            holder, owner = self._holder(slot.name), given.get(slot.name)
            if holder is None:
                view.append(SlotView(slot.name, slot.host, "starting" if owner else "free", owner))
            else:
                state = "used" if holder == owner else "draining"
                view.append(SlotView(slot.name, slot.host, state, holder))
        with self._changed:
            self._view = view
