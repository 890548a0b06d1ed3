"""One step on one rank: shares, their ordered sum, the vote, and recovery between them.

    COMPUTE   the shares of the logical workers that this rank owns
    REDUCE    the ordered sum of all ranks' shares
    VOTE      a second operation: once it ends on any rank, all ranks hold the result
    AGREED    the result is to be applied

A rank that dies sends the others back, see reform.py. The partial sums are kept until the vote.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import lru_cache

import numpy as np

from ddl_core import Comm, Order
from ddl_core.errors import PeerLost
from ddl_elastic.framework import Array
from ddl_elastic.partial import PartialSums
from ddl_elastic.reform import Action, Standing, Watch, decide

CHECK_EVERY = 64  # steps between two comparisons of the ranks' results


class Phase(Enum):
    COMPUTE = auto()
    REDUCE = auto()
    VOTE = auto()
    AGREED = auto()


@dataclass
class Group:
    """The ranks of a job. Deaths change it, and the map may change with each step."""

    comm: Comm
    members: list[int]  # by rank: a number that it keeps for the life of the job
    owners: tuple[int, ...]  # by logical worker: the rank that computes its share, -1: none
    watch: Watch = field(default_factory=Watch)

    @property
    def workers(self) -> int:
        return len(self.owners)

    @property
    def member(self) -> int:
        return self.members[self.comm.rank]

    @property
    def owned(self) -> set[int]:
        return {worker for worker, rank in enumerate(self.owners) if rank == self.comm.rank}


@dataclass
class Recovery:
    """What failures during a step have cost."""

    step: int
    died: list[int]  # members
    adopted: int = 0  # shares of the dead that were computed again, by all ranks together
    seconds: float = 0.0  # from the first notice on this rank until the step was agreed on


@lru_cache(maxsize=4)
def _order(owners: tuple[int, ...], ranks: int) -> Order:
    """The same object in each step with this map: libddl keeps its plans by the order."""
    return Order(owners, ranks)


class Step:
    """Step `number`. For each worker that `shares` yields, `add` its share. After the last one,
    `result` holds the averages over all logical workers, of the same bits on all ranks.

    empty  arrays as a share has them, to hold the result
    check  a number that is compared between the ranks, with checksums of some steps' results
    """

    def __init__(self, group: Group, number: int, empty: Sequence[Array], check: int = 0) -> None:
        self.number = number
        self._check = check
        self.result = list(empty)
        self.phase = Phase.COMPUTE
        self.recovery: Recovery | None = None
        self._noticed = 0.0  # when the first failure was
        self.behind = False  # others had committed it already, and are in the next step
        self._group = group
        self._partial = PartialSums(group.workers)

    def add(self, worker: int, share: Sequence[Array]) -> None:
        """Take in the share of a worker, arrays of one dimension; they belong to the step now."""
        self._partial.add(worker, share)

    def shares(self) -> Iterator[int]:
        """The logical workers whose shares this rank computes. Ends when the step is agreed on;
        after a death it yields the adopted ones."""
        while self.phase is not Phase.AGREED:
            try:
                yield from self._missing()
                self._reduce()
                self._vote()
            except PeerLost:
                self._recover(time.monotonic())
        if self.recovery:
            self.recovery.seconds = time.monotonic() - self._noticed

    def _missing(self) -> Iterator[int]:
        while self.phase is not Phase.VOTE and (missing := self._group.owned - self._partial.held):
            watch = self._group.watch
            watch.begin(self._group.comm, self._standing(), self._group.workers)
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
        comm = self._group.comm
        order = _order(self._group.owners, comm.size)
        parts = self._partial.arrays(order.parts(comm.rank), len(self.result))
        for brought, recv in zip(parts, self.result, strict=True):
            comm.allreduce_ordered(order, brought, recv, op="average")
        self.phase = Phase.VOTE

    def _vote(self) -> None:
        """Every rank holds the result if this ends, here or on any other rank."""
        check = self._checksum() if self.number % CHECK_EVERY == 0 else self._check
        vote = np.array([self.number, -self.number, check, -check])
        self._group.comm.allreduce(vote, op="min")
        if vote[0] != -vote[1]:
            raise RuntimeError(f"ranks vote on steps {vote[0]} and {-vote[1]} at once")
        if vote[2] != -vote[3]:
            raise RuntimeError(
                f"the ranks differ in step {self.number}: this rank's checksum is {check:#x}, all"
                f" are from {vote[2]:#x} to {-vote[3]:#x}."
                + " Seed the generators before the model is made"
                * (self.number == 0)
            )
        self.phase = Phase.AGREED

    def _checksum(self) -> int:
        check = self._check
        for array in self.result:
            check = zlib.crc32(array.data, check)
        return check

    def _standing(self) -> Standing:
        group = self._group
        return Standing(group.member, self.number, self.phase is Phase.VOTE, group.owned)

    def _recover(
        self, noticed: float, comm: Comm | None = None, ranks: Sequence[Standing] = ()
    ) -> None:
        """Go on with the survivors: in this comm of these ranks, if it is made already."""
        group = self._group
        if comm is None:
            comm, ranks = group.watch.survivors(group.comm, self._standing(), group.workers)
        decision = decide(ranks, comm.rank, group.workers)
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


def finish(group: Group, steps: int) -> None:
    """After the last of `steps` steps: wait until every rank has committed it. A rank that left
    earlier could not tell the others, after a death, that it had."""
    while True:
        try:
            group.comm.barrier()
            return
        except PeerLost:
            standing = Standing(group.member, steps, False, ())
            group.comm, ranks = group.watch.survivors(group.comm, standing, group.workers)
            group.members = [each.member for each in ranks]
