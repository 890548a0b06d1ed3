# SPDX-License-Identifier: Apache-2.0
"""The worker registry of a job: starts and removes workers, and plans changes of the group.

A plan names the members of the next group. At most one plan is active. It ends when a member
reports that the group has switched to it or that the plan is cancelled, or when one of its workers
exits. The next `update` may then make another plan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from ddl_elastic.base import protocol
from ddl_elastic.base.messages import Message
from ddl_elastic.base.states import WorkerState
from ddl_elastic.coordinator.rate import Rate
from ddl_elastic.coordinator.watchdogs import JOIN, JoinWatchdog, StartupWatchdog
from ddl_elastic.engines import Handle
from ddl_elastic.shares.balance import Balance, ShareTime, assigned
from ddl_elastic.step.admission import compare

# The states of a worker that has not joined yet.
WAITING = (
    *(WorkerState.STARTING, WorkerState.READY, WorkerState.WARMING, WorkerState.WARMED),
    WorkerState.ADMITTED,
)
# The task of a joining worker in a state. In other states it waits for other processes.
STAGES = {WorkerState.STARTING: "start", WorkerState.WARMING: "warm up"}
FAILURES = 3  # after this many consecutive workers that exited before they joined, start no more


@dataclass
class Worker:
    """A worker that was started."""

    member: int
    handle: Handle
    output: Iterator[bytes]
    state: WorkerState = WorkerState.STARTING
    since: float = field(default_factory=time.monotonic)  # the time of its start
    address: bytes = b""
    pid: int = 0
    joined: bool = False  # it belongs to the group
    lacks_state: bool = False  # it joins a running job, and has not reported a step yet
    bits: protocol.Fingerprint | None = None  # of its admission test, if it joins a running job
    leaves: bool = False  # no later plan may include it
    digest: str = ""  # the digest of its final state
    parts: dict[str, str] = field(default_factory=dict)  # the digests of the state's parts
    code: int | None = None  # the exit code of its process
    cause: str = ""  # the reason for its exit
    hung: str = ""  # the reason for stopping it before it joined
    evidence: str = ""  # how its exit was detected, see engines.Event
    ended: float = 0.0  # the time when its exit was detected
    trace: str = ""  # the traceback of the exception that ended it
    text: bytes = b""  # output after its last complete line
    shares: int = 0  # the number of shares that it has computed
    busy: float = 0.0  # the seconds that these shares took
    audited: int = 0  # the number of shares that it has computed for audits
    rate: Rate = field(default_factory=Rate)
    pace: ShareTime = field(default_factory=ShareTime)

    @property
    def name(self) -> str:
        return f"rank {self.member} on {self.handle.slot.host}"

    @property
    def process(self) -> str:
        """The worker's name, with its process id if that is known."""
        return f"{self.name} (pid {self.pid})" if self.pid else self.name

    @property
    def shown(self) -> str:
        """The worker's state for a report: "observing" while it runs without the job's state."""
        is_observing = self.lacks_state and self.state == WorkerState.RUNNING
        return "observing" if is_observing else self.state


@dataclass(frozen=True)
class Size:
    """The target and limits of a job's number of workers, and whether to replace dead workers."""

    target: int
    least: int = 1
    most: int = 4096
    replace: bool = True

    def check(self, number: int) -> int:
        """Return `number` if the job may have that many workers. Raises ValueError otherwise."""
        if not self.least <= number <= self.most:
            raise ValueError(
                f"{number} workers were requested; this job can have {self.least} to {self.most}"
            )
        return number


class WorkerRegistry:
    """The registry of a job's workers.

    send   sends a message to some workers
    start  starts a worker. Returns False if no slot is free
    stop   stops a worker that has not joined; the text is the reason if it hangs, else ""
    epoch  returns the number for the next comm
    tell   emits an event with a kind, a worker or None, and a text to log
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        size: Size,
        *,
        send: Callable[[Collection[Worker], Message], None],
        start: Callable[[], bool],
        stop: Callable[[Worker, str], None],
        epoch: Callable[[], int],
        tell: Callable[..., None],
    ) -> None:
        self.workers, self.size, self.target = workers, size, size.target
        self._send, self._start, self._stop = send, start, stop
        self._epoch, self._tell = epoch, tell
        self._plan, self._planned = 0, set[int]()  # number and members of the active plan
        self._arrived = set[int]()  # the members of that plan that wait for the others to join
        self._switched_to = 0  # the newest plan to which a member reported a switch
        self._map: Sequence[range] = ()  # the active plan's shares by rank, if it changes them
        self._is_uneven = False  # the next plan should change the shares
        self._first: protocol.Fingerprint | None = None  # the reference results of the first worker
        self.logical = 0  # the number of logical workers, 0 until it is known
        self.wanted = size.target  # the requested number of workers, not reduced by deaths
        self._is_resized = False  # until workers were started for the requested number
        self._lost: list[Worker] = []  # dead workers that are not replaced yet
        self._balance, self._watchdog = Balance(), JoinWatchdog()
        self._founders: StartupWatchdog | None = StartupWatchdog()  # None once training began
        self._failures = 0  # consecutive workers that exited before they joined
        self.ends_when_done = False  # the workers call Loop.steps only once
        self._trainings = 0  # training runs so far; new workers can join only in the first

    def resize(self, number: int) -> None:
        """Set the target to `number` workers. Raises ValueError if the job may not have them."""
        self.target = self.wanted = self.size.check(number)
        self._failures, self._is_resized = 0, True
        self._tell_idle()

    def begun(self, logical: int, watchdog: float = 0.0) -> None:
        """Record that training has begun, with `logical` shares and a watchdog limit in seconds."""
        self._watchdog.seconds, self._founders = watchdog, None
        is_news, self.logical = logical != self.logical, logical
        if is_news:
            self._tell_idle()

    def _tell_idle(self) -> None:
        if 0 < self.logical < self.target:
            text = f"a step has logical={self.logical} shares, so at most {self.logical} workers"
            self._tell("idle", None, f"{text} compute; the job may have {self.target}")

    def pause(self) -> None:
        """Set the target to 0. If the job has checkpoints, the last worker writes one first."""
        self.target = 0

    def connected(self) -> None:
        """Record that all workers were connected to a group to begin a training run."""
        if self.logical or not self._trainings:  # else a worker died before training began
            self._trainings += 1
        self._plan = self._failures = 0

    def ended(self, worker: Worker) -> None:
        """Record that the worker's process has exited."""
        if worker.member in self._planned:
            self._end_plan()
        if worker.leaves:
            return
        if not self.size.replace:
            self.target -= 1
        if worker.joined and self._trainings and self.size.replace:
            self._lost.append(worker)
        if (worker.joined and not worker.lacks_state) or not self._trainings:
            return
        self._failures += 1
        if self._failures == FAILURES:
            self._tell(
                "gave up",
                worker,
                f"{FAILURES} workers in a row have exited before they joined: no more are started",
            )

    def caught_up(self, worker: Worker) -> None:
        """Record that a worker commits steps, which implies that it has the job's state."""
        if worker.lacks_state:
            worker.lacks_state, self._failures = False, 0

    def take_back(self, worker: Worker, trainings: int) -> None:
        """Restore a worker whose agent has reconnected."""
        self._founders = None
        self._trainings = max(self._trainings, trainings)
        worker.joined = worker.state in (WorkerState.RUNNING, WorkerState.DONE)
        if worker.joined:
            self._first = self._first or worker.bits

    def plan_is_under_way(self, number: int, members: Collection[int]) -> None:
        """Restore the plan that an earlier coordinator made. Number 0 means that there is none."""
        if number:
            self._plan, self._planned, self._map = number, {*members}, ()
        if not self.size.replace:
            self.target = sum(each.joined for each in self.workers)

    # ---- messages from workers ----

    def handle_message(self, worker: Worker, message: protocol.FromWorker) -> None:
        """Handle a worker's message. Raises ValueError if it names workers that do not exist, or if
        no worker sends such a message at this time."""
        match message:
            case protocol.ReferenceBits():
                self._first = message.bits
                took = time.monotonic() - worker.since
                self._watchdog.usual = max(self._watchdog.usual, took)
            case protocol.WarmedUp():
                worker.state, worker.bits = WorkerState.WARMED, message.bits
                worker.lacks_state = True
            case protocol.PositionReached():
                if message.plan == self._plan:
                    self._arrived.add(worker.member)
            case protocol.PlanCancelled():
                if message.plan == self._plan:
                    self._end_plan()
                self._end_lost(message.failed)
            case protocol.GroupSwitched():
                self._switched(message)
            case protocol.LeaveRequested():
                worker.leaves = True
                self.target -= not self.size.replace
            case protocol.WorkerLeft():
                worker.state = WorkerState.LEFT
            case _:
                raise ValueError(
                    f"an unexpected {type(message).__name__} message in state {worker.state}"
                )

    def _switched(self, message: protocol.GroupSwitched) -> None:
        members = message.members
        if not all(member in range(len(self.workers)) for member in members):
            raise ValueError(f"unknown members {members}")
        if message.plan < self._switched_to:  # a late report of an older group
            return
        self._switched_to, self._is_uneven = message.plan, False
        if message.plan == self._plan:
            self._plan = 0
            if self._map and len(self._map) == len(members):
                pairs = zip(members, self._map, strict=True)
                counts = ", ".join(f"rank {member} {len(owned)}" for member, owned in pairs)
                text = f"shares by speed from step {message.step} on: {counts}"
                self._tell("balanced", None, text)
        for worker in self.workers:
            if worker.member in members and not worker.joined:
                worker.joined = True
                if worker.state != WorkerState.ENDED:
                    worker.state = WorkerState.RUNNING
                self._tell_change("joined", worker, message)
            elif worker.member not in members and worker.joined and worker.leaves:
                worker.joined = False
                self._tell_change("left", worker, message)

    def _end_plan(self) -> None:
        """End the active plan without a switch. If it changed the shares, the next plan changes
        them."""
        if self._plan:
            self._plan, self._is_uneven = 0, bool(self._map)

    def _end_lost(self, members: Sequence[int]) -> None:
        """Stop joining workers that failed in the comm of a plan. The members themselves monitor
        workers that have joined."""
        for worker in self.workers:
            if worker.member in members and not worker.joined and worker.state in WAITING:
                self._stop(worker, "hung: the other workers have lost it")

    def _tell_change(self, kind: str, worker: Worker, message: protocol.GroupSwitched) -> None:
        step, seconds = message.step, message.seconds
        text = f"{worker.name} has {kind} before step {step}; the others waited {seconds:.2f} s"
        self._tell(kind, worker, text, step=step, seconds=seconds)

    # ---- decisions ----

    def update(self, step: int) -> None:
        """Start, admit, plan and dismiss workers as needed. The coordinator calls it periodically.

        step  the number of steps that the job has committed
        """
        if self._founders:
            self._end_late(self._founders)
        if not self._trainings:
            return
        joined = [each for each in self.workers if each.joined]
        members = [each for each in joined if each.state == WorkerState.RUNNING]
        waiting = [each for each in self.workers if not each.joined and each.state in WAITING]
        # A member has finished its call of Loop.steps.
        is_done = any(each.state == WorkerState.DONE for each in joined)
        if is_done and not self.ends_when_done:
            return
        is_over = is_done or any(each.state == WorkerState.READY for each in joined)
        if self._trainings > 1 or not members or is_over:
            if self._trainings > 1 and members:
                self._tell_not_replaced("workers join during a program's first job only")
            self._dismiss(waiting)
            return
        self._end_hanging(waiting, step)
        self._choose(members, waiting)
        for worker in waiting:
            self._advance(worker)
        newcomers = [each for each in waiting if each.state == WorkerState.ADMITTED]
        self._is_uneven = self._look_at_paces(members, step) or self._is_uneven
        if not self._plan:
            self._make_plan(members, newcomers, self._is_uneven)

    def _look_at_paces(self, members: Sequence[Worker], step: int) -> bool:
        """Report slow members. Return True if the next plan should change the shares."""
        if not self.logical or self._plan:
            return False
        now, seconds = time.monotonic(), {each.member: each.pace.seconds for each in members}
        for member in self._balance.stragglers(now, seconds):
            worker = self.workers[member]
            text = f"{worker.name} takes {worker.pace.seconds:.3g} s a share"
            self._tell("slow", worker, f"{text}, more than twice as long as the others")
        is_uneven = self._balance.is_uneven(now, step, seconds, self.logical)
        for member, assumed in self._balance.tried.items():
            self.workers[member].pace.seconds = assumed
        return is_uneven

    def _end_late(self, founders: StartupWatchdog) -> None:
        """Stop initial workers that are late, so that the ready workers can begin the job."""
        alive = [worker for worker in self.workers if worker.state != WorkerState.ENDED]
        ready = {
            worker.member: worker.since for worker in alive if worker.state == WorkerState.READY
        }
        late = [worker for worker in alive if worker.member not in ready]
        if late and (seconds := founders.update(time.monotonic(), ready)):
            for worker in late:
                self._stop(
                    worker, f"hung: the other workers have waited {seconds:.0f} s for it to start"
                )

    def _end_hanging(self, waiting: Sequence[Worker], step: int) -> None:
        """Stop joining workers that have been too long in one stage."""
        stages = {each.member: STAGES.get(each.state, "") for each in waiting}
        planned = self._planned if self._plan else set[int]()
        stages |= dict.fromkeys((planned - self._arrived) & stages.keys(), JOIN)
        for member, seconds in self._watchdog.update(time.monotonic(), step, stages).items():
            worker = self.workers[member]
            self._stop(worker, f"hung: it did not {stages[member]} in {seconds:.0f} s")

    def _advance(self, worker: Worker) -> None:
        """Warm up a joining worker that is ready, and admit or refuse one that is warmed up."""
        if worker.state == WorkerState.READY:
            worker.state = WorkerState.WARMING
            self._send([worker], protocol.WarmUp())
        elif worker.state == WorkerState.WARMED and self._first and worker.bits:
            try:
                why = compare(self._first, worker.bits)
            except RuntimeError as error:  # it runs another program
                why = str(error)
            worker.state = WorkerState.REFUSED if why else WorkerState.ADMITTED
            if why:
                self._send([worker], protocol.WorkerRefused(why))
                self._tell("refused", worker, why)

    def _choose(self, members: list[Worker], waiting: list[Worker]) -> None:
        """Start workers or make workers leave, to reach the target number."""
        staying = [each for each in members if not each.leaves]
        surplus = len(staying) + len(waiting) - self.target
        while surplus > 0 and waiting:
            waiting[-1].leaves = True
            self._stop(waiting.pop(), "")
            surplus -= 1
        for worker in staying[len(staying) - max(0, surplus) :]:
            worker.leaves = True
        places = -surplus
        while places > 0 and self._failures < FAILURES and self._start():
            places -= 1
        if places <= 0:
            self._lost.clear()
        elif self._failures >= FAILURES:
            self._tell_not_replaced("too many workers have exited before they joined")
        else:
            self._tell_not_replaced("no slot is free", " yet")
            if self._is_resized:
                text = f"{self.target} workers were requested, but no slot is free for {places}"
                self._tell("waits", None, f"{text} of them; they start when slots are free")
        self._is_resized = False

    def _tell_not_replaced(self, why: str, yet: str = "") -> None:
        for worker in self._lost:
            self._tell("not replaced", worker, f"{worker.name} is not replaced{yet}: {why}")
        self._lost.clear()

    def _make_plan(
        self, members: list[Worker], newcomers: list[Worker], is_uneven: bool = False
    ) -> None:
        staying = [each for each in members if not each.leaves]
        if not staying:  # keep the last member until a joining worker has the state
            staying = members if self.target else members[: len(members) > 1]
        if len(staying) == len(members) and not newcomers and not is_uneven:
            return
        # At most half of the members lack the state, so they never continue without the rest.
        newcomers = newcomers[: len(staying)]
        self._plan, chosen = self._epoch(), [*staying, *newcomers]
        self._planned, self._arrived = {each.member for each in [*members, *newcomers]}, set()
        speeds = self._balance.speeds([each.member for each in chosen])
        self._map = assigned(self.logical, tuple(speeds)).ranges if is_uneven and speeds else ()
        self._is_uneven = False
        numbers, new = [each.member for each in chosen], [each.member for each in newcomers]
        # Members know each other's addresses, and those of 1000 members are long.
        for to, unknown in ((members, newcomers), (newcomers, chosen)):
            addresses = {each.member: each.address for each in unknown}
            self._send(to, protocol.GroupPlan(self._plan, numbers, new, addresses, speeds))

    def _dismiss(self, waiting: Sequence[Worker]) -> None:
        """Stop workers that have not joined, because the training run is over."""
        for worker in waiting:
            worker.state, worker.leaves = WorkerState.DISMISSED, True
            self._stop(worker, "")
