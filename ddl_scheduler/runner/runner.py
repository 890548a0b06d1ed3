# SPDX-License-Identifier: Apache-2.0
"""The process that runs one job of `ddl serve`, with the job's coordinator and engine.

The service controls it through a socket: it sends the slots that the job may use, and receives the
slots that the job still holds. If the service exits, the job continues with its slots, and the next
service connects to it. A file keeps the result until a service reads it.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from ddl_elastic.base import environment
from ddl_elastic.base.messages import Channel
from ddl_elastic.base.protocol import JobChannel
from ddl_elastic.base.waiting import ready
from ddl_elastic.coordinator.coordinator import Coordinator, EventListener, JobFailed, wait_for_end
from ddl_elastic.coordinator.worker_registry import Size, Worker
from ddl_elastic.engines import AgentSpec, Program, program
from ddl_elastic.engines.dialed import DialedEngine
from ddl_elastic.engines.local import LocalEngine
from ddl_scheduler.base.folder import JobFolder
from ddl_scheduler.base.requests import MOST, JobSpec, spec_read
from ddl_scheduler.base.store import disk_trouble
from ddl_scheduler.runner import protocol
from ddl_scheduler.runner.slot_filter import SlotFilterEngine
from ddl_scheduler.runner.throughput import ThroughputEstimator
from ddl_scheduler.runner.user import acting_as, become, user_find

TELL_EVERY = 0.5  # seconds between two reports
# Seconds for a worker to leave as planned; then it is killed, and the other workers continue.
LEAVE_LIMIT = 30.0
PAUSE_LIMIT = 120.0  # seconds for a paused job to write its state and exit
OTHERS = 5.0  # seconds for the other agents after the first has connected
PLACES_LIMIT = 60.0  # seconds for the first agent to connect
LOG_BYTES = 256 << 20  # the most bytes of a log file
LIMIT_EVERY = 2.0  # seconds between two checks of their lengths
WRITE_AGAIN = 0.5  # seconds between two attempts while the disk is full
EVENTS = 100  # reported events of a job, the newest ones


class Log(EventListener):
    """A log file of the job's events. The workers' output is in their own files next to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._looked = 0.0

    def limit(self, now: float) -> None:
        """Empty files that are too long, since a program that prints without end would fill the
        disk."""
        if now < self._looked + LIMIT_EVERY:
            return
        self._looked = now
        for path in self._path.parent.glob("*.log"):
            with suppress(OSError):
                size = path.stat().st_size
                if size > LOG_BYTES:
                    os.truncate(path, 0)  # writers append, so they continue at the start
                    text = f"{path.name} had {size} bytes and was emptied"
                    self.event(f"{text}; the limit is {LOG_BYTES}")

    def event(self, text: str) -> None:
        with suppress(OSError), self._path.open("a") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")


def run(order: protocol.RunSpec, listener: socket.socket) -> None:
    """Run the job to its end, and write the result."""
    folder = order.job_folder
    log, earlier = Log(folder.events), folder.result()
    # The state that remains if this process is killed.
    _write(folder, {**earlier, "state": "running"})
    try:
        result = _run(order, spec_read(order.spec), listener, log, earlier)
    except JobFailed as error:
        result = {"state": "failed", "why": str(error), "code": error.code}
    except Exception as error:  # a job with a result is not started again
        result = {"state": "failed", "why": f"{type(error).__name__}: {error}", "code": 1}
    if why := result.get("why"):
        log.event(f"failed: {why}")
    _write(folder, {**earlier, **result})


def _write(folder: JobFolder, result: Mapping[str, Any]) -> None:
    """Write the result. Wait for room while the disk is full: without a result the job would be
    treated as killed, and begin again."""
    while True:
        try:
            return folder.result_write(result)
        except OSError as error:
            if not disk_trouble(error):
                raise
            time.sleep(WRITE_AGAIN)


def _run(
    order: protocol.RunSpec,
    spec: JobSpec,
    listener: socket.socket,
    log: Log,
    earlier: dict[str, Any],
) -> dict[str, Any]:
    folder = order.job_folder
    user = user_find(order.user) if order.user else None
    os.chdir(folder.path)
    path, words, secret = program_path(spec), program_words(spec)[1:], secrets.token_hex()
    with acting_as(user) if user else nullcontext():
        if spec.folder:  # otherwise the current folder stays, even if the user may not enter it
            try:
                os.chdir(spec.folder)
            except OSError as error:
                where = f"the folder {spec.folder} on {socket.gethostname()}"
                raise JobFailed(f"{where} cannot be entered: {error.strerror}") from None
        is_there = path.is_file()
    variables = environment.with_checkpoints(spec.environment, folder.checkpoints.absolute())
    if not order.slots:
        work_in = str(Path.cwd())
        wanted = Program(str(Path(work_in, path)), list(words), work_in, [], variables)
        return _run_on_agents(order, spec, wanted, listener, log, earlier)
    if not is_there:
        raise JobFailed(f"{path}: the program does not exist")
    environment.give_variables(variables)
    if user:
        folder.give_checkpoints(user.pw_uid, user.pw_gid)

    def work(agent: AgentSpec, channel: JobChannel) -> None:
        listener.close()
        if user:
            become(user)
        program.work(agent, channel, path, words, secret, None)

    with LocalEngine(work, len(order.slots), spec.threads, folder.path) as local:
        engine = SlotFilterEngine(local, lambda slot: order.slots[slot.id], order.granted)
        return Runner(engine, spec, listener, log, earlier).run()


def _run_on_agents(
    order: protocol.RunSpec,
    spec: JobSpec,
    wanted: Program,
    listener: socket.socket,
    log: Log,
    earlier: dict[str, Any],
) -> dict[str, Any]:
    """Run the job with workers on the hosts of agents."""
    environment.allow_connections()
    logs = order.job_folder.path
    try:
        opened = DialedEngine(("", 0), order.token, wanted, log.event, logs=logs)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return {"state": "waiting"}  # the service starts the job again when a port is free
    with opened as dialed:
        engine = SlotFilterEngine(dialed, dialed.name, order.granted)
        where = order.run, dialed.port
        return Runner(engine, spec, listener, log, earlier, where, dialed.failures).run()


def program_words(spec: JobSpec) -> Sequence[str]:
    """Return the program and its arguments, without a leading `python`."""
    command = spec.command
    is_python = len(command) > 1 and Path(command[0]).name in ("python", "python3")
    return command[1:] if is_python else command


def program_path(spec: JobSpec) -> Path:
    """Return the path of the program, relative to the folder in which it runs, if it has one."""
    return Path(spec.folder or "", program_words(spec)[0])


class Runner:
    """A run of a job, from its start or its newest checkpoint to its end or a pause.

    where     the name of the run and the port for agents; None if its slots are on this machine
    failures  messages of agents that cannot run the program
    """

    def __init__(
        self,
        engine: SlotFilterEngine,
        spec: JobSpec,
        listener: socket.socket,
        log: Log,
        earlier: dict[str, Any],
        where: tuple[str, int] | None = None,
        failures: Sequence[str] = (),
    ) -> None:
        self._engine, self._where, self._failures = engine, where, failures
        self._pace = ThroughputEstimator()
        self._pace.load(earlier.get("measured", []))
        self._log, self._threads = log, spec.threads
        self._listener = listener
        self._begun: Coordinator | None = None  # set once there is a slot for a worker
        self._service: Channel[protocol.ToRun] | None = None
        self._told: protocol.RunStatus | None = None
        self._told_at = 0.0
        self._number = 0  # the number of the last grant
        self._leaving: dict[int, float] = {}  # by member: when the worker was asked to leave
        self._stops = ""  # "paused" or "cancelled" once it was requested
        self._kill_at = float("inf")

    @property
    def _job(self) -> Coordinator:
        assert self._begun
        return self._begun

    def run(self) -> dict[str, Any]:
        """Run the job, and return its result."""
        if not self._find_places():
            return {"state": self._stops}
        most = MOST if self._where else len(self._engine.slots())
        size = Size(max(1, len(self._engine.granted)), least=1, most=most)
        self._begun = Coordinator(self._engine, size, self._threads, self._log)
        result: dict[str, Any] = {"state": "done"}
        try:
            self._job.run(self._wait_for_end)
        except JobFailed as error:
            result = {"state": "failed", "why": str(error) or self._ends(), "code": error.code}
            if self._is_lost():
                result = {"state": "lost"}
        if self._stops and (result["state"] == "failed" or not self._job.report().get("hash")):
            result = {"state": self._stops}
        told = self._describe()
        result |= {"report": told.report, "measured": told.measured, "logical": told.logical}
        return result

    def _find_places(self) -> bool:
        """Wait for slots, since agents on other hosts need a while to connect. Return whether the
        job may begin, perhaps with fewer slots than granted. Raises JobFailed."""
        began, some = time.monotonic(), float("inf")
        while not self._stops:
            free = sum(slot.state == "free" for slot in self._engine.slots())
            now = time.monotonic()
            some = min(some, now) if free else float("inf")
            if not self._where or free >= len(self._engine.granted) or now > some + OTHERS:
                break
            if not free and self._failures:
                raise JobFailed("; ".join(self._failures))
            if now > began + PLACES_LIMIT:
                raise JobFailed(
                    f"no agent has connected to port {self._where[1]} within"
                    f" {PLACES_LIMIT:.0f} s; check that agents can reach every port of this machine"
                )
            self._engine.events(0.05)
            self._hear()
        return not self._stops

    def _is_lost(self) -> bool:
        """Return True if the job failed because agents were lost, so that it can begin again.
        Workers that left or were replaced earlier do not matter."""
        last = [worker for worker in self._job.last_workers() if worker.code]
        return any(worker.evidence != "told" for worker in last)

    def _wait_for_end(self) -> None:
        while self._job.alive():
            self._job.wait()
            self._hear()
            self._steer()
            self._tell()
            self._log.limit(time.monotonic())
        wait_for_end(self._job)

    def _ends(self) -> str:
        """Describe how the workers that have failed have ended."""
        ended = [worker for worker in self._job.workers if worker.code]
        return "; ".join(f"{worker.name} has ended: {worker.cause}" for worker in ended)

    # ---- the service ----

    def _hear(self) -> None:
        waits_for: list[Any] = [self._listener, *([self._service] if self._service else [])]
        for one in ready(waits_for, 0):
            if one is self._listener:
                connection, _ = self._listener.accept()
                if self._service:
                    self._service.close()
                self._service, self._told = Channel(connection, protocol.TO_RUN), None
                if self._where:
                    with suppress(OSError):  # the next poll detects the lost connection
                        told = protocol.RunListens(*self._where, self._number, self._engine.held)
                        self._service.send(told)
                return
            try:
                for message in one.poll():
                    self._take(message)
            except (EOFError, ValueError):  # the service has exited; the job continues
                one.close()
                self._service = None

    def _take(self, message: protocol.ToRun) -> None:
        if isinstance(message, protocol.GrantSlots):
            if not self._stops:
                self._grant(message)
        elif isinstance(message, protocol.PauseRun):
            self._stop("paused", PAUSE_LIMIT)
        else:
            self._stop("cancelled", 0.0)

    def _grant(self, grant: protocol.GrantSlots) -> None:
        self._number = grant.number
        self._engine.granted = frozenset(grant.slots)
        if self._begun:
            self._job.registry.resize(max(1, len(grant.slots)))

    def _stop(self, how: str, limit: float) -> None:
        self._stops = how
        self._kill_at = min(self._kill_at, time.monotonic() + limit)
        if self._begun:
            self._job.registry.pause()

    def _describe(self) -> protocol.RunStatus:
        report = self._job.report()
        report["events"] = report["events"][-EVENTS:]
        held = self._engine.held if self._job.alive() else []
        return protocol.RunStatus(
            self._number, held, report, self._pace.measured(), self._job.registry.logical
        )

    def _tell(self) -> None:
        now = time.monotonic()
        self._measure(now)
        if self._service is None:
            return
        known = self._told and (self._told.number, self._told.held)
        if now < self._told_at + TELL_EVERY and known == (self._number, self._engine.held):
            return
        told, self._told_at = self._describe(), now
        with suppress(OSError):  # the next poll detects the lost connection
            if self._service.offer(told):  # fails if the service does not keep up
                self._told = told

    def _measure(self, now: float) -> None:
        workers = self._job.workers
        running = [worker for worker in workers if worker.state == "running"]
        hosts = len({worker.handle.slot.host for worker in running})
        shares, busy = sum(w.shares for w in workers), sum(w.busy for w in workers)
        self._pace.see(now, self._job.steps, len(running), hosts, shares, busy)

    # ---- the workers ----

    def _steer(self) -> None:
        """Ask workers to leave the slots that the job must release, and all workers when the job
        stops."""
        now = time.monotonic()
        alive = self._job.alive()
        if now >= self._kill_at:
            for worker in alive:
                self._job.stop(worker, self._stops)
            return
        begun = any(worker.joined for worker in alive)
        for worker in alive:
            if self._may_stay(worker):
                continue
            asked = self._leaving.setdefault(worker.member, now)
            worker.leaves = True
            is_last = len(alive) == 1 and not self._stops
            if not is_last and (not worker.joined or not begun or now > asked + LEAVE_LIMIT):
                self._engine.stop(worker.handle, 0)
        if self._stops and not begun:
            self._kill_at = now

    def _may_stay(self, worker: Worker) -> bool:
        return self._engine.name(worker.handle.slot) in self._engine.granted
