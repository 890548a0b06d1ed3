"""The switch to the comm of a plan, between two steps, and the state for those who are new in it.

All stand still for it. First they tell each other who has the state; then those who have it send
it, and a barrier ends the switch. A death sends all back to the beginning, but for those who have
passed the barrier: these recover in their step, where the others join them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Protocol

from ddl_core import Comm
from ddl_core.errors import Aborted, PeerLost
from ddl_elastic import transfer
from ddl_elastic.admission import AdmissionError, Candidate
from ddl_elastic.framework import Framework, State
from ddl_elastic.membership import NotAdmitted, Plan, close
from ddl_elastic.reform import Standing, decide, gather
from ddl_elastic.reporter import Reporter
from ddl_elastic.step import Group
from ddl_elastic.transfer import Receiver

# What a planned comm ends with: deaths, and members that give it up while they are in it.
GIVEN_UP = (PeerLost, Aborted)
TRIES, PAUSE = 100, 0.02  # seconds between them


class Job(Protocol):
    """What ddl_elastic.loop.Loop has for it."""

    framework: Framework
    group: Group
    reporter: Reporter

    @property
    def position(self) -> dict[str, int]: ...

    def go_to(self, position: dict[str, int]) -> None: ...

    def share_out(self) -> None: ...


def follow_plan(job: Job) -> None:
    """Switch, if it was agreed on. Raises membership.Left if this rank is to leave."""
    group, membership = job.group, job.group.membership
    if membership is None or not membership.is_agreed:
        return
    began = time.monotonic()
    before, plan = {*group.members}, membership.switch(group.comm)
    assert plan.comm
    group.watch.watchdog.observe(plan.comm)
    group.speeds = dict(zip(plan.members, plan.speeds, strict=False))
    _settle(job, plan.comm, Standing(membership.member, job.position["number"], False, ()))
    died = sorted((before & {*plan.members}) - {*group.members})
    seconds = time.monotonic() - began
    job.reporter.switched(plan.number, job.position["next"], seconds, group.members, died)


def join(job: Job, candidate: Candidate) -> None:
    """As a newcomer, who has computed the reference share. Raises AdmissionError if it was another
    one than the others', and JobOver."""
    membership, alone = job.group.membership, job.group.comm
    assert membership
    membership.inbox.channel.send("warmed", bits=asdict(candidate))
    receiver = Receiver()
    while True:
        try:
            plan = membership.wait()
        except NotAdmitted as refused:
            raise AdmissionError(*refused.args) from None
        assert plan.comm
        job.group.speeds = dict(zip(plan.members, plan.speeds, strict=False))
        own = Standing(membership.member, 0, False, (), whole=False)
        with suppress(*GIVEN_UP):
            join_rehearsal(job, plan, receiver)
        if _settle(job, plan.comm, own, receiver):
            break
        membership.drop()
    close(alone)
    membership.joined()


def rehearse(framework: Framework, comm: Comm, ranks: Sequence[Standing]) -> None:
    """On a member, beside its steps: what comes at the switch, so that all memory for it is there.
    It takes longer than the rest."""
    if transfer.ends(ranks)[1]:
        transfer.rehearse(comm, ranks, _read(framework))
    transfer.warm_up(comm)


def _read(framework: Framework) -> State:
    """The state while the program changes it, at which reading may fail."""
    for _ in range(TRIES):
        try:
            return framework.state()
        except Exception:
            time.sleep(PAUSE)
    return framework.state()


def join_rehearsal(job: Job, plan: Plan, receiver: Receiver) -> None:
    """On a newcomer."""
    assert plan.comm
    state, _ = receiver.receive(plan.comm, plan.standings)
    job.framework.load(state)
    transfer.end_rehearsal(plan.comm, plan.standings)
    transfer.warm_up(plan.comm)


def _settle(job: Job, comm: Comm, own: Standing, receiver: Receiver | None = None) -> bool:
    """Make this comm the group's, all of whose ranks have the state. False on a newcomer that has
    found nobody with the state: the plan was void."""
    group = job.group
    ranks: Sequence[Standing] = ()
    while True:
        try:
            ranks = ranks or gather(comm, own, group.workers)
            if not any(each.whole for each in ranks):
                close(comm)
                return False
            if not all(each.whole for each in ranks):
                own = _transfer(job, comm, ranks, own, receiver)
                comm.barrier()
            break
        except GIVEN_UP:
            comm, ranks = group.watch.survivors(comm, own, group.workers)
    group.comm, group.members = comm, [each.member for each in ranks]
    assign_shares(job, ranks)
    group.watch.watchdog.observe(comm)
    return True


def assign_shares(job: Job, ranks: Sequence[Standing]) -> None:
    """Who computes what in the next step, which some may be in already."""
    if any(each.owned for each in ranks):
        job.group.owners = decide(ranks, job.group.comm.rank, job.group.workers).owners
    else:
        job.share_out()


def _transfer(
    job: Job, comm: Comm, ranks: Sequence[Standing], own: Standing, receiver: Receiver | None
) -> Standing:
    """The state, to all who lack it. This rank's standing afterwards."""
    if receiver is None or own.whole:
        transfer.send(comm, ranks, job.framework.state(), job.position)
        return own
    state, position = receiver.receive(comm, ranks)
    job.framework.load(state)
    job.go_to(position)
    return replace(own, step=position["number"], whole=True)
