# SPDX-License-Identifier: Apache-2.0
"""One step on one rank: shares, their ordered sums, the vote, and recovery between them.

    COMPUTE   the shares of the logical workers that this rank owns
    REDUCE    the ordered sums of all ranks' shares, one for each array
    VOTE      a further operation: once it ends on any rank, all ranks hold the result
    AGREED    the result is to be applied

A rank that dies sends the others back, see reform.py. The partial sums are kept until the vote.

The sums of a share's first arrays start while the others are computed: in the backward pass of the
last share of each rank. All ranks start the sums in the order of the arrays.

Who starts them: the thread of the backward pass, through Watch.submit. Once the watch has noticed
that the comm is dead, its thread leaves the comm, and nothing is started on it any more. What has
not been started in the backward pass is started after it, when the watch has ended.

Who waits for them: the rank, after its last share; or before it goes on after a failure, since the
arrays may be changed only when no sum reads them. Sums end by themselves when their comm dies.

After a failure, the arrays of a share that is under way are still added to the partial sums one by
one, each once, whether their sums have started or not. On the next comm all sums are made again,
also those that were complete on this rank: other ranks may lack them.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache
from typing import Any

import numpy as np

from ddl_core import Comm, Order, Work
from ddl_core.errors import DdlError
from ddl_elastic.frameworks.protocol import Ready, Share, Summed
from ddl_elastic.step.membership import Membership
from ddl_elastic.step.partial import PartialSums, add_arrays
from ddl_elastic.step.reform import LOST, Action, RankProgress, Watch, decide
from ddl_elastic.step.sums import Sums
from ddl_elastic.step.transfer import Sender
from ddl_elastic.storage.saving import Saver

CHECK_EVERY = 64  # steps between two comparisons of the ranks' results


class Phase(Enum):
    COMPUTE = auto()
    REDUCE = auto()
    VOTE = auto()
    AGREED = auto()


@dataclass
class RankGroup:
    """The ranks of a job. Deaths change it, and the map may change with each step."""

    comm: Comm
    members: list[int]  # by rank: a number that it keeps for the life of the job
    owners: tuple[int, ...]  # by logical worker: the rank that computes its share, -1: none
    watch: Watch = field(default_factory=Watch)
    sums: Sums = field(default_factory=Sums)
    saver: Saver | None = None
    membership: Membership | None = None  # None: nobody joins or leaves
    speeds: Mapping[int, float] = field(default_factory=dict)  # by member; empty: equal ones
    # Members that have no shares, since they lack the state or are about to catch up.
    observing: frozenset[int] = frozenset()
    observes: bool = False  # this rank's program is not where the others' are
    sender: Sender = field(default_factory=Sender)
    sends_at: int | None = None  # the number of the step before which the state is to be sent
    is_awaited: bool = False  # the others wait for this rank's program, its thread has told them
    writer_is_done: bool = False  # it has come to the end, and has left

    def __post_init__(self) -> None:
        self.watch.watchdog.spares = self._receiving

    def _receiving(self) -> list[int]:
        """The ranks to which this one's part of the state is on its way."""
        if not self.sender.is_sending:
            return []
        return [rank for rank, member in enumerate(self.members) if member in self.observing]

    @property
    def workers(self) -> int:
        return len(self.owners)

    @property
    def member(self) -> int:
        return self.members[self.comm.rank]

    @property
    def whole(self) -> list[int]:
        """The ranks that do not observe."""
        return [rank for rank, member in enumerate(self.members) if member not in self.observing]

    def observed_by(self, members: frozenset[int], sends_at: int) -> None:
        """These observe from now on."""
        self.observing = members
        self.sends_at = sends_at if members else None

    @property
    def owned(self) -> frozenset[int]:
        return _owned(self.owners, self.comm.rank)


@dataclass
class Recovery:
    """What failures during a step have cost."""

    step: int
    died: list[int]  # members
    adopted: int = 0  # shares of the dead that were computed again, by all ranks together
    seconds: float = 0.0  # from the first notice on this rank until the step was agreed on


@dataclass(frozen=True)
class PlainArrays:
    """See ddl_elastic.frameworks.protocol.Summed. Arrays that are no framework's."""

    arrays: Share
    op: str = "average"

    def result(self) -> Share:
        return self.arrays

    def ops(self) -> Sequence[str]:
        return [self.op] * len(self.arrays)

    def free(self, share: Share) -> None:
        """Another share has arrays of its own."""


@lru_cache(maxsize=4)
def _owned(owners: tuple[int, ...], rank: int) -> frozenset[int]:
    return frozenset(worker for worker, owner in enumerate(owners) if owner == rank)


@lru_cache(maxsize=4)
def _order(owners: tuple[int, ...], ranks: int) -> Order:
    """The same object in each step with this map: libddl keeps its plans by the order."""
    return Order(owners, ranks)


class Step:
    """Step `number`. For each worker that `shares` yields, `add` its share. After the last one, the
    result holds the averages or sums over all logical workers, of the same bits on all ranks.

    summed      has the arrays
    name        for messages
    may_switch  whether the ranks may agree in it on a plan
    trains      whether it is a training step: those who observe take part in no other
    """

    def __init__(
        self,
        group: RankGroup,
        number: int,
        summed: Summed,
        name: str = "",
        may_switch: bool = False,
        trains: bool = False,
    ) -> None:
        self.number, self.name, self._trains = number, name, trains
        self._membership = group.membership if may_switch else None
        self._result, self._ops = summed.result(), summed.ops()
        self.phase = Phase.COMPUTE
        self.recovery: Recovery | None = None
        self._noticed = 0.0  # when the first failure was
        self.behind = False  # others had committed it already, and are in the next step
        self.first_left = False  # a death has hidden that rank 0 had committed it, and left
        self._group = group
        add_to = getattr(summed, "add", add_arrays)  # a framework may have a way of its own
        self._partial = PartialSums(group.workers, summed.free, add_to)
        self._works: list[Work[Any]] = []  # the sums that have started, by array

    def add(self, worker: int, share: Share) -> None:
        """Take in the share of a worker, arrays of one dimension; they belong to the step until
        `free` is called with it."""
        self._partial.add(worker, share)

    def early(self, worker: int) -> Ready | None:
        """What takes in the first arrays of the worker's share as they are complete, and starts
        their sums. None before the last share of this rank: then the sums cannot start."""
        if self._group.observing or self._group.owned - self._partial.held != {worker}:
            return None

        def ready(share: Share, count: int) -> None:
            self._partial.add(worker, share, count)
            with suppress(*LOST):  # the watch will notice it as well
                self._group.watch.submit(lambda: self._submit(count))

        return ready

    def shares(self) -> Iterator[int]:
        """The logical workers whose shares this rank computes. Ends when the step is agreed on;
        after a death it yields the adopted ones."""
        while self.phase is not Phase.AGREED:
            try:
                yield from self._missing()
                self._reduce()
                self._vote()
            except LOST:
                self._recover(time.monotonic())
        self._partial.clear()
        if self.recovery:
            self.recovery.seconds = time.monotonic() - self._noticed

    def _missing(self) -> Iterator[int]:
        while self.phase is not Phase.VOTE and (missing := self._group.owned - self._partial.held):
            watch = self._group.watch
            group = self._group
            watch.begin(group.comm, self._standing(), group.workers, group.members)
            try:
                for worker in sorted(missing):
                    yield worker
                    if watch.noticed:
                        break
            finally:
                found = watch.end()
            if found:
                self._recover(watch.noticed, *found)

    def _reduce(self) -> None:
        if self.phase is Phase.VOTE:
            return
        self.phase = Phase.REDUCE
        if self._group.observing:
            self._tell_kind()
        self._submit(len(self._result))
        for work in self._works:
            work.wait()
        self._works.clear()
        self.phase = Phase.VOTE

    def _tell_kind(self) -> None:
        """Those who observe learn whether they can take part in this step as they are."""
        if not self._group.is_awaited:
            trains = np.array([self._trains])
            self._group.comm.allreduce(trains, op="min")
            if trains[0]:
                return
        self._group.is_awaited = False
        self._await()

    def _await(self) -> None:
        """All programs are to come here. Those who lack the state cannot, if it was not sent since
        the last death: it is sent before training steps."""
        group = self._group
        if group.sends_at is not None:
            for rank in range(group.comm.size):
                if rank not in group.whole:
                    group.comm.expel(rank, "others have died before it had the state")
        group.comm.barrier()

    def _submit(self, count: int) -> None:
        """Start the sums of the first `count` arrays, but for those that have started."""
        comm = self._group.comm
        order = _order(self._group.owners, comm.size)
        nodes = order.parts(comm.rank)
        for number in range(len(self._works), count):
            brought, op = self._partial.arrays(nodes, number), self._ops[number]
            recv = self._result[number]
            work = self._group.sums.start(number, comm, order, brought, recv, op)
            self._works.append(work)

    def _settle(self) -> None:
        """Wait until no sum reads the arrays any more. The comm is dead."""
        for work in self._works:
            with suppress(DdlError):
                work.wait()
        self._works.clear()

    def _vote(self) -> None:
        """Every rank holds the result if this ends, here or on any other rank."""
        check = self._checksum() if self.number % CHECK_EVERY == 0 else 0
        saver = self._group.saver
        plan = self._membership.word() if self._membership else 0
        word = saver.word if saver else 0
        here = not self._group.observes
        vote = np.array([self.number, -self.number, check, -check, word, plan, -plan, here])
        self._group.comm.allreduce(vote, op="min")
        if vote[0] != -vote[1]:
            raise RuntimeError(f"ranks vote on steps {vote[0]} and {-vote[1]} at once")
        if vote[2] != -vote[3]:
            raise RuntimeError(
                f"the ranks differ in {self.name}: this rank's checksum is {check:#x}, all"
                f" are from {vote[2]:#x} to {-vote[3]:#x}"
            )
        if saver:
            saver.agree(int(vote[4]))
        if self._membership:
            self._membership.voted(int(vote[5]), -int(vote[6]))
        if vote[7]:
            self._group.observing = frozenset()
        self.phase = Phase.AGREED

    def _checksum(self) -> int:
        check = 0
        for array in self._result:
            check = zlib.crc32(array.data, check)
        return check

    def _standing(self) -> RankProgress:
        group = self._group
        has_result, membership = self.phase is Phase.VOTE, group.membership
        follows = membership is not None and membership.is_agreed
        whole = self._is_whole()
        return RankProgress(
            group.member, self.number, has_result, group.owned, whole, follows, True
        )

    def _is_whole(self) -> bool:
        """Whether this rank has the state."""
        return True

    def _recover(
        self, noticed: float, comm: Comm | None = None, ranks: Sequence[RankProgress] = ()
    ) -> None:
        """Go on with the survivors: in this comm of these ranks, if it is made already."""
        self._settle()
        group = self._group
        group.is_awaited = False
        if comm is None:
            standing = self._standing()
            comm, ranks = group.watch.survivors(group.comm, standing, group.workers, group.members)
        decision = decide(ranks, comm.rank, group.workers)
        lacking = frozenset(each.member for each in ranks if not each.whole)
        group.observed_by(lacking, decision.step + 1)
        self.first_left = self.first_left or any(each.first_left for each in ranks)
        if group.membership:
            group.membership.recovered(any(each.follows for each in ranks))
        if self.recovery is None:
            self.recovery, self._noticed = Recovery(self.number, []), noticed
        self.recovery.died += sorted({*group.members} - {each.member for each in ranks})
        group.comm, group.owners = comm, decision.owners
        group.members = [each.member for each in ranks]
        if decision.action is Action.APPLY:
            self.phase, self.behind = Phase.AGREED, True
        elif decision.action is Action.COMPUTE:
            self.phase = Phase.COMPUTE
            self.recovery.adopted += decision.adopted
