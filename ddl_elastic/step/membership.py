# SPDX-License-Identifier: Apache-2.0
"""Planned changes of a worker's group: workers join and leave without a restart.

A plan lists the members and addresses of the next comm. All members create that comm in a thread
while the current comm stays in use. In the vote of each step a rank sends the number of the plan
whose comm it has. When all ranks send the same number, they switch when the next step begins: they
close the old comm and continue in the new one.

If a rank dies during the vote, some ranks may not see the vote end. They shrink the old comm. Ranks
that saw the vote end close the old comm without having died. The shrinking ranks detect this
(reform.survivors) and switch, too. A rank whose program has failed also closes the comm, so ranks
switch only if all of them have voted for the same plan. If no rank saw the vote end, the plan is
cancelled. Either all ranks switch, or none does. A death in the new comm is handled like any other
death.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ddl_core import Comm, Config, Endpoint
from ddl_core.errors import DdlError, Mismatch
from ddl_elastic.base import environment, protocol
from ddl_elastic.base.inbox import Inbox
from ddl_elastic.base.messages import JobOver
from ddl_elastic.step.reform import RankProgress
from ddl_elastic.step.watchdog import OPERATION_LIMIT

CREATION_LIMIT = 30.0  # seconds
ANSWER_MORE = 10.0  # seconds; a running coordinator answers within this time


class Left(SystemExit):
    """Error: a plan has removed this worker from its job. Its program exits here with status 0."""


class NotAdmitted(RuntimeError):
    """Error: this worker computes different bits than the ranks that already train."""


_asked = False  # this process has received SIGTERM


def leave_when_asked() -> None:
    """Install a handler for SIGTERM, so that the signal makes this worker request to leave its job
    through a plan. A second SIGTERM kills the process. Does nothing if the program has its own
    handler. Must be called in the main thread."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _ask)


def _ask(*_: object) -> None:
    global _asked
    _asked = True
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@dataclass
class MembershipPlan:
    """A planned comm, from the view of one worker."""

    number: int
    members: Sequence[int]  # by rank
    newcomers: Sequence[int]
    speeds: Sequence[float]  # by rank, for the assignment of shares; empty means equal speeds
    comm: Comm | None = None  # None until it is created
    is_ready: bool = False  # True if this rank can vote for the plan

    @property
    def standings(self) -> list[RankProgress]:
        """The progress of each rank before the switch: joining workers do not have the state."""
        return [
            RankProgress(member, 0, False, (), whole=member not in self.newcomers)
            for member in self.members
        ]

    def lost(self, comm: Comm | None) -> list[int]:
        """Return the members that the comm has lost."""
        with suppress(DdlError):
            return [self.members[rank] for rank in comm.failed()] if comm else []
        return []


class Membership:
    """The membership of one worker in its job.

    addresses  the endpoint address of each current member
    is_new     True if the worker joins a running job
    """

    def __init__(
        self,
        inbox: Inbox,
        member: int,
        endpoint: Endpoint,
        addresses: Mapping[int, bytes],
        is_new: bool = False,
    ) -> None:
        self.inbox, self.member, self.is_new = inbox, member, is_new
        self._endpoint = endpoint
        self._addresses = {**addresses}  # of all members that it has received
        self._plan: MembershipPlan | None = None
        self._fixed = False  # the ranks may have agreed on the plan, so a newer one waits
        self._newer: protocol.GroupPlan | None = None
        self._newest = 0  # the number of the newest received plan
        self.is_agreed = False  # the switch follows
        self._has_told = False  # it has reported the request to leave
        self._is_closed = False
        self._rehearse: Callable[[Comm, Sequence[RankProgress]], None] = lambda *_: None

    def begin(self, rehearse: Callable[[Comm, Sequence[RankProgress]], None]) -> None:
        """Start to receive plans. A thread calls `rehearse` with the comm of each plan before this
        rank votes for it."""
        self._rehearse = rehearse
        self.inbox.take_plans(self._receive)

    # ---- plans, handled in the inbox's thread or, if they had to wait, in the voting thread ----

    def _receive(self, message: protocol.GroupPlan) -> None:
        with self.inbox.changed:
            self._addresses.update(message.addresses)
            if message.plan < self._newest:  # another thread has handled a newer plan
                return
            self._newest = message.plan
            if self._fixed:
                self._newer = message
                return
            plan = MembershipPlan(message.plan, message.members, message.newcomers, message.speeds)
            old, self._plan = self._plan, plan
            if self.member not in plan.members:
                plan.is_ready = True
        _close(old)
        if not plan.is_ready:
            addresses = [self._addresses[each] for each in plan.members]
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
        with self.inbox.changed:
            plan.comm = comm  # so that the rehearsal ends with the plan
            is_current = self._plan is plan
        if not is_current:
            close(comm)
            return
        try:
            if not self.is_new:
                self._rehearse(comm, plan.standings)
        except Exception:  # the transfer failed, or the program changed the state
            failed = plan.lost(comm)
            close(comm)
            self._tell_void(plan, failed)
            return
        with self.inbox.changed:
            plan.is_ready = True
            self.inbox.changed.notify_all()

    def _tell_void(self, plan: MembershipPlan, failed: Sequence[int]) -> None:
        with self.inbox.changed, suppress(OSError):
            if not self._is_closed:  # afterwards the channel carries only the final state
                self.inbox.channel.send(protocol.PlanCancelled(plan.number, [*failed]))

    def request_quorum(self, members: Sequence[int], missing: Sequence[int]) -> str:
        """Request permission from the coordinator to continue without the missing members. Return
        "" if it is granted, else the reason. Called by a side of the group without a majority."""
        request = protocol.QuorumRequest([*members], [*missing])
        reply = self.inbox.ask(2 * environment.dead() + ANSWER_MORE, request)
        return reply.why if reply else "the coordinator does not answer"

    # ---- a member's votes ----

    def tell_wish(self) -> None:
        """Report to the coordinator, once, that this worker was asked to leave."""
        if _asked and not self._has_told:
            self._has_told = True
            self.inbox.channel.send(protocol.LeaveRequested())

    def word(self) -> int:
        """Return this rank's ballot: the number of the plan whose comm it has, or 0. The plan then
        stays until `voted`, or until recovery has shown how the vote ended."""
        self.tell_wish()
        with self.inbox.changed:
            plan = self._plan
            if plan is None or not plan.is_ready:
                return 0
            if self.is_agreed or not (plan.comm and plan.comm.error):
                self._fixed = True
                return plan.number
        self.drop()  # the new comm has lost a member before the switch
        return 0

    @property
    def ballot(self) -> int:
        """The number of the plan for which this rank has voted, or 0. It stays until `voted` or
        `recovered` shows that the ranks do not switch, or until they have switched."""
        with self.inbox.changed:
            return self._plan.number if self._plan and self._fixed else 0

    def voted(self, least: int, most: int) -> None:
        """Record the smallest and the largest ballot of a completed vote."""
        self.is_agreed = self.is_agreed or 0 < least == most
        if not self.is_agreed:
            self._release()

    def recovered(self, follows: bool) -> None:
        """Handle the death of a rank. `follows` is True if other ranks have already switched."""
        self.is_agreed = follows and self._fixed
        if not self.is_agreed:
            self.drop()

    def drop(self) -> None:
        """Cancel the plan, and report this to the coordinator."""
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
        """True if this rank is ready to vote for a plan."""
        return self._plan is not None and self._plan.is_ready

    @property
    def planned(self) -> Sequence[int]:
        """The members of the pending plan."""
        return self._plan.members if self._plan else ()

    @property
    def ends_job(self) -> bool:
        """True if the ranks have agreed on a plan without members, through which the last members
        leave."""
        return self.is_agreed and self._plan is not None and not self._plan.members

    def switch(self, comm: Comm) -> MembershipPlan:
        """Close the old comm and return the agreed plan, whose comm replaces it. Raises Left if
        this rank is not a member of the plan."""
        plan = self._plan
        assert plan and self.is_agreed
        close(comm)
        if plan.comm is None:
            self.inbox.channel.send(protocol.WorkerLeft())
            self.close()
            raise Left(0)
        self._take_over()
        return plan

    def _take_over(self) -> None:
        """Clear the plan after its comm has become the group's comm."""
        self.is_agreed = False
        with self.inbox.changed:
            self._plan = None
        self._release()

    # ---- a joining worker ----

    def wait(self) -> MembershipPlan:
        """Wait for a plan, and return it once its comm has been created. Raises NotAdmitted or
        JobOver."""
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
        if isinstance(message, protocol.WorkerRefused):
            raise NotAdmitted(message.why)
        raise JobOver("the job is over")

    def joined(self) -> None:
        """Record that this joining worker is now a member, in the plan's comm."""
        self.is_new = False
        self._take_over()

    def close(self) -> None:
        """Cancel the pending plan and close the endpoint. The group's comm is closed already."""
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
