# SPDX-License-Identifier: Apache-2.0
"""How a worker's group changes by plan: newcomers join, others leave, and nobody restarts.

A plan lists the members and addresses of the next comm. All of them create it beside the running
one, in a thread. In the vote of each step a rank tells which plan's comm it holds. Once all hold
the same one, they switch to it after that step: they close the old comm, and begin in the new one.

Some ranks may not see the vote end, because another one has died in it. They shrink the old comm.
Those who have seen it end have closed it, or do so at once: they have left it alive, which the
others notice (reform.survivors), and follow. If nobody has, the plan is void. So the plan holds for
all or for nobody. A death in the new comm is a death as any other.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ddl_core import Comm, Config, Endpoint
from ddl_core.errors import DdlError, Mismatch
from ddl_elastic.base import environment
from ddl_elastic.base.inbox import Inbox
from ddl_elastic.base.messages import JobOver, Message
from ddl_elastic.step.reform import RankProgress
from ddl_elastic.step.watchdog import OPERATION_LIMIT

CREATION_LIMIT = 30.0  # seconds
ANSWER_MORE = 10.0  # seconds: a coordinator that is there has answered by then


class Left(SystemExit):
    """Error: this worker has left its job by plan; its program ends here, with status 0."""


class NotAdmitted(RuntimeError):
    """Error: this worker computes other bits than those who have begun."""


_asked = False  # this process was asked to end


def leave_when_asked() -> None:
    """SIGTERM makes this process leave its job by plan. A second one ends it at once, as does one
    that the program has a handler of its own for. To be called in the main thread."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _ask)


def _ask(*_: object) -> None:
    global _asked
    _asked = True
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@dataclass
class MembershipPlan:
    """The next comm, as one worker sees it."""

    number: int
    members: Sequence[int]  # by rank
    newcomers: Sequence[int]
    speeds: Sequence[float]  # by rank, for the map of shares; empty: equal ones
    comm: Comm | None = None  # once it is created
    is_ready: bool = False

    @property
    def standings(self) -> list[RankProgress]:
        """Before the switch: who has the state, and who lacks it."""
        return [
            RankProgress(member, 0, False, (), whole=member not in self.newcomers)
            for member in self.members
        ]

    def lost(self, comm: Comm | None) -> list[int]:
        """The members that its comm has lost."""
        with suppress(DdlError):
            return [self.members[rank] for rank in comm.failed()] if comm else []
        return []


class Membership:
    """Of one worker in its job.

    addresses  of the members so far
    is_new     whether others have begun already
    """

    def __init__(
        self,
        inbox: Inbox,
        member: int,
        endpoint: Endpoint,
        addresses: Mapping[int, str],
        is_new: bool = False,
    ) -> None:
        self.inbox, self.member, self.is_new = inbox, member, is_new
        self._endpoint = endpoint
        self._addresses = {**addresses}  # of all members that it was told of
        self._plan: MembershipPlan | None = None
        self._fixed = False  # the plan may be agreed on: a newer one waits
        self._newer: Message | None = None
        self._newest = 0  # the number of a plan that has come
        self.is_agreed = False  # the switch follows
        self._has_told = False  # that it was asked to leave
        self._is_closed = False
        self._rehearse: Callable[[Comm, Sequence[RankProgress]], None] = lambda *_: None

    def begin(self, rehearse: Callable[[Comm, Sequence[RankProgress]], None]) -> None:
        """Take plans. `rehearse` is called in a thread with a plan's comm, before this rank votes
        for the plan."""
        self._rehearse = rehearse
        self.inbox.take_plans(self._receive)

    # ---- plans, in the inbox's thread, or later in that of the votes ----

    def _receive(self, message: Message) -> None:
        told = message.fields
        with self.inbox.changed:
            self._addresses.update((int(each), a) for each, a in told["addresses"].items())
            if told["plan"] < self._newest:  # another thread has taken a newer one meanwhile
                return
            self._newest = told["plan"]
            if self._fixed:
                self._newer = message
                return
            plan = MembershipPlan(told["plan"], told["members"], told["newcomers"], told["speeds"])
            old, self._plan = self._plan, plan
            if self.member not in plan.members:
                plan.is_ready = True
        _close(old)
        if not plan.is_ready:
            addresses = [bytes.fromhex(self._addresses[each]) for each in plan.members]
            threading.Thread(target=self._create, args=(plan, addresses), daemon=True).start()

    def _create(self, plan: MembershipPlan, addresses: Sequence[bytes]) -> None:
        config = Config(
            timeout=CREATION_LIMIT, operation_timeout=OPERATION_LIMIT, epoch=plan.number
        )
        try:
            comm = self._endpoint.connect(addresses, plan.members.index(self.member), config)
        except DdlError:
            self._tell_void(plan, [])
            return
        try:
            if not self.is_new:
                self._rehearse(comm, plan.standings)
        except Exception:  # of the transfer, or of a program that changes what is read
            failed = plan.lost(comm)
            close(comm)
            self._tell_void(plan, failed)
            return
        with self.inbox.changed:
            if self._plan is plan:
                plan.comm, plan.is_ready = comm, True
                self.inbox.changed.notify_all()
                return
        comm.close()

    def _tell_void(self, plan: MembershipPlan, failed: Sequence[int]) -> None:
        with self.inbox.changed, suppress(OSError):
            if not self._is_closed:  # else the channel is for the final state
                self.inbox.channel.send("void", plan=plan.number, failed=[*failed])

    def request_quorum(self, members: Sequence[int], missing: Sequence[int]) -> str:
        """Ask the coordinator whether this rank's side of a group, which is no majority, may
        continue without the missing members. Return why not; "" if it may."""
        question = {"members": [*members], "missing": [*missing]}
        answer = self.inbox.ask(2 * environment.dead() + ANSWER_MORE, **question)
        return answer.fields["why"] if answer else "the coordinator does not answer"

    # ---- a member's votes ----

    def tell_wish(self) -> None:
        """Before a vote: this worker was asked to leave, and tells so once."""
        if _asked and not self._has_told:
            self._has_told = True
            self.inbox.channel.send("leave")

    def word(self) -> int:
        """Of a vote: the plan whose comm this rank holds; 0: none. The plan stays until `voted`, or
        until it is known what the vote has come to."""
        self.tell_wish()
        with self.inbox.changed:
            plan = self._plan
            if plan is None or not plan.is_ready:
                return 0
            if self.is_agreed or not (plan.comm and plan.comm.error):
                self._fixed = True
                return plan.number
        self.drop()  # one of them is lost before the switch
        return 0

    def voted(self, least: int, most: int) -> None:
        """The vote has ended."""
        self.is_agreed = self.is_agreed or 0 < least == most
        if not self.is_agreed:
            self._release()

    def recovered(self, follows: bool) -> None:
        """Somebody has died. `follows`: the plan is agreed on, since others have gone on."""
        self.is_agreed = follows and self._fixed
        if not self.is_agreed:
            self.drop()

    def drop(self) -> None:
        """The plan is void."""
        with self.inbox.changed:
            plan, self._plan = self._plan, None
        self.is_agreed = False
        if plan:
            failed = plan.lost(plan.comm)
            _close(plan)
            self._tell_void(plan, failed)
        self._release()

    def _release(self) -> None:
        with self.inbox.changed:
            self._fixed = False
            newer, self._newer = self._newer, None
        if newer:
            self._receive(newer)

    @property
    def has_plan(self) -> bool:
        """Whether there is a plan whose comm this rank holds."""
        return self._plan is not None and self._plan.is_ready

    @property
    def ends_job(self) -> bool:
        """Whether the plan is agreed on by which the last member leaves."""
        return self.is_agreed and self._plan is not None and not self._plan.members

    def switch(self, comm: Comm) -> MembershipPlan:
        """Close the old comm; the plan, whose comm takes its place. Raises Left if this rank is not
        in it."""
        plan = self._plan
        assert plan and self.is_agreed
        close(comm)
        if plan.comm is None:
            self.inbox.channel.send("left")
            self.close()
            raise Left(0)
        self._take_over()
        return plan

    def _take_over(self) -> None:
        """The plan's comm is the group's."""
        self.is_agreed = False
        with self.inbox.changed:
            self._plan = None
        self._release()

    # ---- a newcomer ----

    def wait(self) -> MembershipPlan:
        """For a plan whose comm is there. Raises NotAdmitted, and JobOver."""
        inbox = self.inbox
        with inbox.changed:
            inbox.changed.wait_for(
                lambda: not inbox.is_empty or (self._plan and self._plan.is_ready)
            )
            plan = self._plan
            if inbox.is_empty and plan:
                self._fixed = True
                return plan
        message = inbox.receive()
        if message.kind == "refused":
            raise NotAdmitted(message.fields["why"])
        raise JobOver("the job is over")

    def joined(self) -> None:
        """The newcomer is a member, in the plan's comm."""
        self.is_new = False
        self._take_over()

    def close(self) -> None:
        """End what is under way. The group's comm is closed already."""
        self.inbox.take_plans(lambda _: None)
        with self.inbox.changed:
            self._is_closed = True
            plan, self._plan = self._plan, None
        _close(plan)
        self._endpoint.close()


def close(comm: Comm) -> None:
    with suppress(Mismatch):
        comm.close()


def _close(plan: MembershipPlan | None) -> None:
    if plan and plan.comm:
        close(plan.comm)
