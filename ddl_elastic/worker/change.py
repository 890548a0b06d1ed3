# SPDX-License-Identifier: Apache-2.0
"""The switch to the comm of a plan, between two steps, and the state for its joining workers.

The ranks exchange their progress. Each rank that has the state copies a part of it and continues,
while a thread sends the copy. Ranks that lack the state observe, see observer.py. A death in
between is a death in the new comm. If some ranks have begun the next step, the others join it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ddl_core import Comm
from ddl_core.errors import TimedOut
from ddl_elastic.base.protocol import Fingerprint, PositionReached, WarmedUp
from ddl_elastic.frameworks.protocol import Framework, State
from ddl_elastic.sharded.cut import StateLost
from ddl_elastic.sharded.shards import Shards
from ddl_elastic.step import transfer
from ddl_elastic.step.admission import AdmissionError
from ddl_elastic.step.membership import Membership, MembershipPlan, NotAdmitted, close
from ddl_elastic.step.reform import LOST, UNKNOWN, RankProgress, decide, gather
from ddl_elastic.step.step import PlainArrays, RankGroup, Step
from ddl_elastic.step.transfer import Receiver
from ddl_elastic.worker import shared_storage
from ddl_elastic.worker.evaluation import EvaluationHistory, Table
from ddl_elastic.worker.observer import Observer, Results
from ddl_elastic.worker.reporter import Reporter

TRIES, PAUSE = 100, 0.02  # number of tries to read the state, and seconds between them
# Seconds in which a joining program must receive a position, and then reach it.
ARRIVAL_LIMIT = 60.0
# Seconds in which the ranks of a plan's comm must exchange transfer.WARM_UP bytes, enough at
# 1 Mbit/s. Without a watchdog, nothing else ends the wait for a rank that hangs.
WARM_UP_LIMIT = 600.0


@dataclass(frozen=True)
class Arrival:
    """The data that a joining worker has received, and the job's position at that time."""

    observer: Observer | None  # None in a sharded job
    state: State
    tables: list[Table]  # see evaluation.EvaluationHistory
    head: list[Table]
    number: int
    next: int  # training step
    call: int  # of Loop.steps
    audit: Mapping[str, Any]  # what others know of audits
    # The plan by which this rank joins when its program has reached the position; None if it has
    # joined. Only in a sharded job.
    plan: MembershipPlan | None = None


class SwitchingLoop(Protocol):
    """The attributes of ddl_elastic.worker.loop.Loop that the functions of this module use."""

    framework: Framework
    group: RankGroup
    reporter: Reporter

    @property
    def position(self) -> dict[str, int]: ...

    @property
    def past(self) -> EvaluationHistory: ...

    def share_out(self, number: int) -> None: ...

    def hand_over(self, members: Sequence[int]) -> None: ...


def follow_plan(job: SwitchingLoop) -> None:
    """Switch to the planned comm if the ranks have agreed. Raises Left if this rank must leave."""
    group, membership = job.group, job.group.membership
    if membership is None or not membership.is_agreed:
        return
    began = time.monotonic()
    staying = membership.planned
    if group.shards and staying and group.shards.needs_hand_over(staying):
        job.hand_over(staying)
        if not membership.is_agreed:  # the plan is cancelled: another one follows
            return
    plan = membership.switch(group.comm)
    assert plan.comm
    group.watch.watchdog.observe(plan.comm)
    group.speeds = dict(zip(plan.members, plan.speeds, strict=False))
    is_new = membership.member in group.joined
    own = RankProgress(membership.member, job.position["number"], False, (), is_new=is_new)
    _settle(job, plan, own)
    if group.audit:
        group.audit.joined(plan.newcomers, job.position["next"])
    send_state(job)
    died = sorted({*plan.members} - {*group.members})
    seconds = time.monotonic() - began
    job.reporter.switched(plan.number, job.position["next"], seconds, group.members, died)


def send_state(job: SwitchingLoop) -> None:
    """Start sending this rank's part of the state to the observing ranks, if the transfer is due at
    this step."""
    group = job.group
    if group.sends_at is None or job.position["number"] < group.sends_at:
        return
    group.sends_at = None
    if group.member not in group.observing:
        lacking = [rank for rank in range(group.comm.size) if rank not in group.whole]
        state, where = job.framework.state(), describe_position(job)
        group.sender.send(group.comm, group.whole, lacking, state, where)


def describe_position(job: SwitchingLoop) -> dict[str, Any]:
    """Return the position of the job, for joining ranks."""
    audit = job.group.audit
    return {
        **job.position,
        "tables": [table.tolist() for table in job.past.tables],
        "head": [table.tolist() for table in job.past.head],
        "audit": audit.known() if audit else {},
    }


def _read_position(
    observer: Observer | None,
    state: State,
    where: dict[str, Any],
    plan: MembershipPlan | None = None,
) -> Arrival:
    """Return the data that a joining worker has received with this position of the job."""
    tables, head = ([np.array(each) for each in where.pop(name)] for name in ("tables", "head"))
    return Arrival(observer, state, tables, head, **where, plan=plan)


def join(job: SwitchingLoop, candidate: Fingerprint) -> Arrival:
    """Join the job, as a worker that has computed the reference share. Raises AdmissionError if the
    share differs from the reference share of the running workers. Raises JobOver."""
    group, membership = job.group, job.group.membership
    assert membership
    if group.shards:
        group.shards.join()
        membership.inbox.channel.send(WarmedUp(candidate))
        return _approach(job)
    results, receiver = Results(job.framework), Receiver()
    receiver.reserve(job.framework.state())
    membership.inbox.channel.send(WarmedUp(candidate))
    number = None
    while number is None:
        plan = _wait_for_plan(job)
        _tell_arrival(membership, plan)
        number = _join_group(job, plan)
    observer = Observer(group, number, results, receiver, job.share_out)
    return _read_position(observer, *observer.receive())


def _tell_arrival(membership: Membership, plan: MembershipPlan) -> None:
    """Report that the other ranks need not wait for this one to switch."""
    with suppress(OSError):  # the coordinator has exited
        membership.inbox.channel.send(PositionReached(plan.number))


def _wait_for_plan(job: SwitchingLoop) -> MembershipPlan:
    """Wait for a plan that admits this rank, and return it once its comm has been created. Raises
    AdmissionError if the rank is not admitted."""
    group, membership = job.group, job.group.membership
    assert membership
    try:
        plan = membership.wait()
    except NotAdmitted as refused:
        raise AdmissionError(*refused.args) from None
    assert plan.comm
    group.speeds = dict(zip(plan.members, plan.speeds, strict=False))
    with suppress(*LOST):
        if saver := group.saver:
            saver.token = shared_storage.share_token(plan.comm, plan.standings)
            shared_storage.check_joining(saver, membership.member)
        transfer.warm_up(plan.comm)
    return plan


def _join_group(job: SwitchingLoop, plan: MembershipPlan) -> int | None:
    """Become a member in the plan's comm. Return the number of the other ranks' current or next
    step, or None if the plan was cancelled."""
    membership, alone = job.group.membership, job.group.comm
    assert membership
    own = RankProgress(membership.member, UNKNOWN, False, (), whole=False, is_new=True)
    number = _settle(job, plan, own)
    if number is None:
        membership.drop()
    else:
        close(alone)
        membership.joined()
    return number


def _approach(job: SwitchingLoop) -> Arrival:
    """Receive the other ranks' position over the comm of a plan. The others vote for the plan when
    this rank's program has reached that position, see `enter`."""
    membership = job.group.membership
    assert membership
    while True:
        plan = _wait_for_plan(job)
        assert plan.comm
        with suppress(*LOST, TimedOut):
            where = _share_position(plan.comm, plan.standings, dict)
            return _read_position(None, {}, where, plan)
        membership.drop()


def enter(job: SwitchingLoop, plan: MembershipPlan) -> Arrival:
    """Join the others in a sharded job. If they have cancelled the plan, wait for another one, and
    return the position that the others have then."""
    shards, membership = job.group.shards, job.group.membership
    assert shards and membership and plan.comm
    try:
        _tell_arrival(membership, plan)
        plan.comm.allreduce(np.zeros(1))  # this rank has arrived
    except LOST:
        membership.drop()
        return _approach(job)
    number = _join_group(job, plan)
    return _approach(job) if number is None else _receive_shards(job, shards, number)


def _share_position(
    comm: Comm, ranks: Sequence[RankProgress], where: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Return the position of the first rank that has the state. All ranks call it. Raises TimedOut
    if one of them does not; without a watchdog, nothing else ends the wait."""
    root = next(rank for rank, each in enumerate(ranks) if each.whole)
    text = np.empty(0, np.uint8)
    if comm.rank == root:
        text = np.frombuffer(json.dumps(where()).encode(), np.uint8).copy()
    length = np.array([text.size])
    comm.broadcast_async(length, root).wait(ARRIVAL_LIMIT)
    if comm.rank != root:
        text = np.empty(int(length[0]), np.uint8)
    comm.broadcast_async(text, root).wait(ARRIVAL_LIMIT)
    found: dict[str, Any] = json.loads(text.tobytes())
    return found


def _receive_shards(job: SwitchingLoop, shards: Shards, number: int) -> Arrival:
    """Receive this rank's ranges, while the other ranks prepare for the step of this number. Raises
    NotAdmitted if they have lost the state."""
    try:
        Step(job.group, number, PlainArrays([])).enter()
    except StateLost as error:
        raise NotAdmitted(f"this worker cannot join: {error}") from error
    return _read_position(None, *shards.arrived())


def rehearse(
    framework: Framework, group: RankGroup, comm: Comm, ranks: Sequence[RankProgress]
) -> None:
    """Allocate the memory for the switch on a member, in parallel with its steps. The allocation
    would be the slowest part of the switch. In a sharded job, wait until the programs of joining
    ranks have reached this rank's position. Raises TimedOut; the plan is then cancelled."""
    whole = [each for each in ranks if each.whole]
    if len(whole) < len(ranks) and not group.shards:
        group.sender.reserve(_read(framework), len(whole))
    if len(whole) < len(ranks) and group.saver:
        shared_storage.share_token(comm, ranks, group.saver.token, ARRIVAL_LIMIT)
    transfer.warm_up(comm, WARM_UP_LIMIT)
    if len(whole) < len(ranks) and group.shards:
        _share_position(comm, ranks, group.shards.where)
        comm.allreduce_async(np.zeros(1)).wait(ARRIVAL_LIMIT)


def _read(framework: Framework) -> State:
    """Return the state. Retry, because reading may fail while the program changes the state."""
    for _ in range(TRIES):
        try:
            return framework.state()
        except Exception:
            time.sleep(PAUSE)
    return framework.state()


def _settle(job: SwitchingLoop, plan: MembershipPlan, own: RankProgress) -> int | None:
    """Make the plan's comm the group's comm. Return the number of the current or next step, or None
    if no rank has the state. A joining worker then knows that the plan was cancelled."""
    group, comm = job.group, plan.comm
    assert comm
    try:
        ranks: Sequence[RankProgress] = gather(comm, own, group.workers)
    except LOST:
        comm, ranks, _ = group.watch.survivors(comm, own, group.workers, plan.members)
    if not any(each.whole for each in ranks):
        close(comm)
        return None
    group.comm, group.members = comm, [each.member for each in ranks]
    group.joined = frozenset(each.member for each in ranks if each.is_new)
    number = max(each.step for each in ranks)
    has_begun = any(each.has_begun for each in ranks)
    if not group.shards:  # otherwise the next step moves the ranges
        group.observed_by(frozenset(r.member for r in ranks if not r.whole), number + has_begun)
    if has_begun:
        group.owners = decide(ranks, comm.rank, group.workers).owners
    else:
        job.share_out(number)
    group.watch.watchdog.observe(comm)
    return number
