# SPDX-License-Identifier: Apache-2.0
"""The worker registry of a job: starts and removes workers, and plans changes of the group.

A plan names the members of the next group. At most one plan is active. It ends when a member
reports that the group has switched to it or that the plan is void, or when one of its workers
exits. The next `update` may then make another plan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddl_elastic.base.states import WorkerState
from ddl_elastic.coordinator.rate import Rate
from ddl_elastic.coordinator.watchdogs import JoinWatchdog, StartupWatchdog
from ddl_elastic.engines import Handle
from ddl_elastic.shares.balance import Balance, ShareTime, assigned
from ddl_elastic.step.admission import Fingerprint, compare

# The states of a worker that has not joined yet.
WAITING = (
    *(WorkerState.STARTING, WorkerState.READY, WorkerState.WARMING, WorkerState.WARMED),
    WorkerState.ADMITTED,
)
# What a newcomer does in a state, and which others do not do for it.
STAGES = {WorkerState.STARTING: "start", WorkerState.WARMING: "warm up"}
FAILURES = 3  # workers in a row that may end before they have joined, until no more are started


@dataclass
class Worker:
    """A worker that was started."""

    member: int
    handle: Handle
    output: Iterator[bytes]
    state: WorkerState = WorkerState.STARTING
    since: float = field(default_factory=time.monotonic)  # its start
    address: str = ""
    pid: int = 0
    joined: bool = False  # it was told of the others
    lacks_state: bool = False  # a newcomer, until it has told of a step
    bits: Fingerprint | None = None  # a newcomer's
    leaves: bool = False  # it is to be in no further plan
    digest: str = ""  # of its final state, and of its parts
    parts: dict[str, str] = field(default_factory=dict)
    code: int | None = None  # of its process
    cause: str = ""  # of its end
    hung: str = ""  # why its end was ordered, before it joined
    evidence: str = ""  # of its end, see engines.Event
    ended: float = 0.0  # when it was known
    trace: str = ""  # of the exception that ended it
    text: bytes = b""  # the beginning of a line that it has written
    shares: int = 0  # that it has computed, and the seconds that these took
    busy: float = 0.0
    audited: int = 0  # shares that it has computed for audits
    rate: Rate = field(default_factory=Rate)
    pace: ShareTime = field(default_factory=ShareTime)

    @property
    def name(self) -> str:
        return f"rank {self.member} on {self.handle.slot.host}"

    @property
    def process(self) -> str:
        """Its name and process, where that is known."""
        return f"{self.name} (pid {self.pid})" if self.pid else self.name

    @property
    def shown(self) -> str:
        """Its state, for a report. The job cannot go on with those alone that observe."""
        is_observing = self.lacks_state and self.state == WorkerState.RUNNING
        return "observing" if is_observing else self.state


@dataclass(frozen=True)
class Size:
    """How many workers a job may have, and whether one that died is replaced."""

    target: int
    least: int = 1
    most: int = 4096
    replace: bool = True

    def check(self, number: int) -> int:
        """Returns it; raises ValueError."""
        if not self.least <= number <= self.most:
            raise ValueError(
                f"{number} workers are asked for; this job may have {self.least} to {self.most}"
            )
        return number


class WorkerRegistry:
    """The workers of a job.

    send   a message to these workers
    start  starts one more worker; returns whether there was a place
    stop   ends a worker that has not joined; why, if it hangs
    epoch  the next number for a comm
    tell   an event of this kind, with a line to show
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        size: Size,
        *,
        send: Callable[..., None],
        start: Callable[[], bool],
        stop: Callable[[Worker, str], None],
        epoch: Callable[[], int],
        tell: Callable[..., None],
    ) -> None:
        self.workers, self.size, self.target = workers, size, size.target
        self._send, self._start, self._stop = send, start, stop
        self._epoch, self._tell = epoch, tell
        self._plan, self._planned = 0, set[int]()  # the number of the one under way; its members
        self._switched_to = 0  # the newest plan that a member has told of
        self._map: Sequence[range] = ()  # by which it changes the shares, if it does; by rank
        self._is_uneven = False  # it has not come about, so another one is to change them
        self._first: Fingerprint | None = None  # what the first worker has computed
        self.logical = 0  # workers of the job, once they are known
        self.wanted = size.target  # workers, also where those who died are not replaced
        self._lost: list[Worker] = []  # who are to be replaced
        self._balance, self._watchdog = Balance(), JoinWatchdog()
        self._founders: StartupWatchdog | None = StartupWatchdog()  # until they have begun
        self._failures = 0
        self.ends_when_done = False  # the workers call Loop.steps once
        self._trainings = 0  # that the workers have begun; newcomers would begin the first one

    def resize(self, number: int) -> None:
        """Have so many workers. Raises ValueError."""
        self.target = self.wanted = self.size.check(number)
        self._failures = 0
        self._tell_idle()

    def begun(self, logical: int, watchdog: float = 0.0) -> None:
        """The workers compute the shares of so many logical ones."""
        self._watchdog.seconds, self._founders = watchdog, None
        is_news, self.logical = logical != self.logical, logical
        if is_news:
            self._tell_idle()

    def _tell_idle(self) -> None:
        if 0 < self.logical < self.target:
            idle = f"{self.target - self.logical} of {self.target} workers have no share"
            self._tell("idle", None, f"{idle}: there are logical={self.logical} shares in a step")

    def pause(self) -> None:
        """Have nobody. The last one writes a checkpoint before it leaves, if the job has them."""
        self.target = 0

    def connected(self) -> None:
        """The workers have begun to train, all who are there together."""
        if self.logical or not self._trainings:  # else one has died before any had begun
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
                f"{FAILURES} workers in a row have ended before they joined: no more are started",
            )

    def caught_up(self, worker: Worker) -> None:
        """Record that a worker commits steps, with the state if it lacked that before."""
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

    # ---- what workers tell ----

    def handle_message(self, worker: Worker, kind: str, fields: Mapping[str, Any]) -> bool:
        """Handle a worker's message. Return False if its kind is not one for the registry.

        Raises ValueError if the message names workers that do not exist.
        """
        if kind == "admitted":
            self._first = Fingerprint(**fields["bits"])
            took = time.monotonic() - worker.since
            self._watchdog.usual = max(self._watchdog.usual, took)
        elif kind == "warmed":
            worker.state, worker.bits = WorkerState.WARMED, Fingerprint(**fields["bits"])
            worker.lacks_state = True
        elif kind == "void":
            if fields["plan"] == self._plan:
                self._end_plan()
            self._end_lost(fields["failed"])
        elif kind == "switched":
            self._switched(fields)
        elif kind == "leave":
            worker.leaves = True
            self.target -= not self.size.replace
        elif kind == "left":
            worker.state = WorkerState.LEFT
        else:
            return False
        return True

    def _switched(self, fields: Mapping[str, Any]) -> None:
        members, step = fields["members"], fields["step"]
        if not all(member in range(len(self.workers)) for member in members):
            raise ValueError(f"members {members}")
        if fields["plan"] < self._switched_to:  # a late member tells of an older group
            return
        self._switched_to, self._is_uneven = fields["plan"], False
        if fields["plan"] == self._plan:
            self._plan = 0
            if self._map and len(self._map) == len(members):
                pairs = zip(members, self._map, strict=True)
                counts = ", ".join(f"rank {member} {len(owned)}" for member, owned in pairs)
                self._tell("balanced", None, f"shares by speed from step {step} on: {counts}")
        for worker in self.workers:
            if worker.member in members and not worker.joined:
                worker.joined = True
                if worker.state != WorkerState.ENDED:
                    worker.state = WorkerState.RUNNING
                self._tell_change("joined", worker, fields)
            elif worker.member not in members and worker.joined and worker.leaves:
                worker.joined = False
                self._tell_change("left", worker, fields)

    def _end_plan(self) -> None:
        """Nobody has told yet that the group has switched to it."""
        if self._plan:
            self._plan, self._is_uneven = 0, bool(self._map)

    def _end_lost(self, members: Sequence[int]) -> None:
        """Of the comm of a plan. If they have joined, the others notice it as well."""
        for worker in self.workers:
            if worker.member in members and not worker.joined and worker.state in WAITING:
                self._stop(worker, "hung: the others have lost it")

    def _tell_change(self, kind: str, worker: Worker, fields: Mapping[str, Any]) -> None:
        step, seconds = fields["step"], fields["seconds"]
        text = f"{worker.name} has {kind} before step {step}; the others waited {seconds:.2f} s"
        self._tell(kind, worker, text, step=step, seconds=seconds)

    # ---- what follows ----

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
        # With a call of Loop.steps.
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
        """Whether there is to be another map."""
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
        """Workers that do not come to the beginning of the job, where the others wait for them."""
        alive = [worker for worker in self.workers if worker.state != WorkerState.ENDED]
        ready = {
            worker.member: worker.since for worker in alive if worker.state == WorkerState.READY
        }
        late = [worker for worker in alive if worker.member not in ready]
        if late and (seconds := founders.update(time.monotonic(), ready)):
            for worker in late:
                self._stop(worker, f"hung: the others have waited {seconds:.0f} s for it to start")

    def _end_hanging(self, waiting: Sequence[Worker], step: int) -> None:
        """Newcomers that do not get further."""
        stages = {each.member: STAGES.get(each.state, "") for each in waiting}
        planned = self._planned if self._plan else set[int]()
        stages |= dict.fromkeys(planned & stages.keys(), "join")
        for member, seconds in self._watchdog.update(time.monotonic(), step, stages).items():
            worker = self.workers[member]
            self._stop(worker, f"hung: it was to {stages[member]} for {seconds:.0f} s")

    def _advance(self, worker: Worker) -> None:
        """A newcomer, which has got further."""
        if worker.state == WorkerState.READY:
            worker.state = WorkerState.WARMING
            self._send([worker], "warm")
        elif worker.state == WorkerState.WARMED and self._first and worker.bits:
            try:
                why = compare(self._first, worker.bits)
            except RuntimeError as error:  # its program is another one
                why = str(error)
            worker.state = WorkerState.REFUSED if why else WorkerState.ADMITTED
            if why:
                self._send([worker], "refused", why=why)
                self._tell("refused", worker, why)

    def _choose(self, members: list[Worker], waiting: list[Worker]) -> None:
        """Who is started and who leaves, so that there are as many as there should be."""
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
            self._tell_not_replaced("too many have ended before they joined")
        else:
            self._tell_not_replaced("no place is free so far")

    def _tell_not_replaced(self, why: str) -> None:
        for worker in self._lost:
            self._tell("not replaced", worker, f"{worker.name} is not replaced: {why}")
        self._lost.clear()

    def _make_plan(
        self, members: list[Worker], newcomers: list[Worker], is_uneven: bool = False
    ) -> None:
        staying = [each for each in members if not each.leaves]
        if not staying:  # the last one does not leave before a newcomer has the state
            staying = members if self.target else members[: len(members) > 1]
        if len(staying) == len(members) and not newcomers and not is_uneven:
            return
        # Those who lack the state are at most half, so they never go on without the others.
        newcomers = newcomers[: len(staying)]
        self._plan, chosen = self._epoch(), [*staying, *newcomers]
        self._planned = {each.member for each in [*members, *newcomers]}
        speeds = self._balance.speeds([each.member for each in chosen])
        self._map = assigned(self.logical, tuple(speeds)).ranges if is_uneven and speeds else ()
        self._is_uneven = False
        plan = {
            "plan": self._plan,
            "members": [each.member for each in chosen],
            "newcomers": [each.member for each in newcomers],
            "speeds": speeds,
        }
        # The addresses of 1000 members are long, and members know each other's.
        self._send(members, "plan", **plan, addresses=_addresses(newcomers))
        if newcomers:
            self._send(newcomers, "plan", **plan, addresses=_addresses(chosen))

    def _dismiss(self, waiting: Sequence[Worker]) -> None:
        """The job is over before they have joined."""
        for worker in waiting:
            worker.state, worker.leaves = WorkerState.DISMISSED, True
            self._stop(worker, "")


def _addresses(workers: Sequence[Worker]) -> dict[str, str]:
    return {str(worker.member): worker.address for worker in workers}
