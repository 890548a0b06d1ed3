# SPDX-License-Identifier: Apache-2.0
"""One step on one rank: shares, their ordered sums, the vote, and recovery between them.

    COMPUTE   the shares of the logical workers that this rank owns
    REDUCE    the ordered sums of all ranks' shares, one for each array
    VOTE      a further operation: once it ends on any rank, all ranks hold the result
    AGREED    the result is to be applied

A rank that dies sends the others back, see reform.py. The partial sums are kept until the vote.

In an audited step a rank first computes a share of another rank, and the vote compares the digests
of both computations, see audit.py. If they differ, the ranks compute the share again and repeat the
vote, until it is known which rank is wrong. Then the others continue as after its death.

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

import hashlib
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
from ddl_core.errors import DdlError, PeerLost
from ddl_elastic.base.audits import AuditError
from ddl_elastic.frameworks.protocol import Ready, Share, Summed
from ddl_elastic.step.audit import (
    NOTHING,
    Audit,
    AuditFinding,
    AuditOutcome,
    Evidence,
    describe,
    describe_sum,
    gather,
    judge,
)
from ddl_elastic.step.digest import ShareDigest
from ddl_elastic.step.membership import Membership, NotAdmitted
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
    audit: Audit | None = None  # None: no share is audited

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
        self._audit = group.audit if trains else None
        self.is_audit = False  # whether the share that was yielded last is for an audit
        self._digests: dict[int, list[ShareDigest]] = {}  # by worker: of its computations here
        self._audited: set[int] = set()  # whose shares this rank has computed for an audit
        self._contested = -1  # the worker whose share this rank is to compute once more

    def add(self, worker: int, share: Share) -> None:
        """Take in the share of a worker, arrays of one dimension; they belong to the step until
        `free` is called with it."""
        self._partial.add(worker, share)

    def early(self, worker: int) -> Ready | None:
        """What takes in the first arrays of the worker's share as they are complete, and starts
        their sums. None before the last share of this rank: then the sums cannot start."""
        missing = self._group.owned - self._partial.held
        if self._group.observing or missing != {worker} or self.is_audit:
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
        while missing := self._find_missing():
            watch = self._group.watch
            group = self._group
            watch.begin(group.comm, self._standing(), group.workers, group.members)
            try:
                for worker, self.is_audit in missing:
                    yield worker
                    if watch.noticed:
                        break
            finally:
                found = watch.end()
            if found:
                self._recover(watch.noticed, *found)

    def _find_missing(self) -> list[tuple[int, bool]]:
        """Return the workers whose shares this rank is to compute now, and whether for an audit."""
        if self.phase is Phase.VOTE:
            return [(self._contested, True)] if self._contested >= 0 else []
        rank, audits = self._group.comm.rank, self._audits()
        audited = sorted({v for v, by in audits.items() if by == rank} - self._audited)
        missing = sorted(self._group.owned - self._partial.held)
        return [*((v, True) for v in audited), *((v, False) for v in missing)]

    # ---- audits ----

    def _audits(self) -> Mapping[int, int]:
        """Return the audited workers, with the rank that computes the share of each once more."""
        return self._audit.plan(self.number, self._group.owners) if self._audit else {}

    def needs_digest(self, worker: int) -> bool:
        """Return True if the digest of the worker's share is to be recorded."""
        return self.is_audit or worker in self._audits()

    def record(self, worker: int, digest: ShareDigest) -> None:
        """Record what this rank has computed as the worker's share."""
        self._digests.setdefault(worker, []).append(digest)
        if self.is_audit:
            self._audited.add(worker)
            self._contested = -1

    def _digest_words(self, worker: int) -> tuple[int, int]:
        """Return the words of a vote: all ranks learn the least and the greatest digest."""
        words = [each.word for each in self._digests.get(worker, ())]
        return min(words, default=NOTHING), -max(words, default=-NOTHING)

    def _contest(self, worker: int) -> None:
        """The computations of the worker's share differ. All ranks learn the same."""
        group, audit = self._group, self._audit
        assert audit
        table = gather(group.comm, audit.evidence(group.member, self._digests.get(worker, ())))
        computed = {rank: [e.word for e in each.digests] for rank, each in enumerate(table)}
        verdict = judge(computed, sorted({owner for owner in group.owners if owner >= 0}))
        if verdict.outcome is AuditOutcome.COMPUTE:
            if group.comm.rank in verdict.ranks:
                self._contested = worker
        elif verdict.outcome is not AuditOutcome.AGREE:
            self._end_contest(verdict.ranks, describe(verdict, table, audit.step, worker))

    def _contest_sum(self, check: int) -> None:
        """The results of the ranks differ. Raises RuntimeError if no majority has one."""
        group, audit = self._group, self._audit
        assert audit
        table = gather(group.comm, Evidence(group.member, computed=[{"": check}]))
        self._end_contest(*describe_sum(table, audit.step, self.name))

    def _end_contest(self, ranks: Sequence[int], finding: AuditFinding) -> None:
        """Raises AuditError on the ranks that are wrong and, if the job cannot continue, on all.
        Raises PeerLost on the others: they continue as after a death."""
        comm, audit = self._group.comm, self._audit
        assert audit
        audit.found(finding)
        if finding.stops or comm.rank in ranks:
            with suppress(*LOST):
                comm.barrier()
            raise AuditError(finding.text)
        if finding.share >= 0:
            self.phase = Phase.COMPUTE  # the result has a wrong share in it
        comm.barrier()  # all have the finding
        for rank in ranks:
            comm.expel(rank, finding.text)
        comm.barrier()

    # ---- the sums and the vote ----

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
        """Those who observe learn whether they can take part in this step as they are: in a
        training step whose arrays have the layout that they know."""
        group = self._group
        if not group.is_awaited:
            layout = self._layout()
            words = np.array([self._trains, layout, -layout])
            group.comm.allreduce(words, op="min")
            if words[0] and words[1] == -words[2]:
                return
        group.is_awaited = False
        self._await()
        self._refuse_misfits()

    def _layout(self) -> int:
        """Return a digest of the result's arrays: their types, lengths and operations."""
        arrays = zip(self._result, self._ops, strict=True)
        text = repr([(array.dtype.name, array.size, op) for array, op in arrays])
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")

    def _refuse_misfits(self) -> None:
        """Continue without the joining workers whose arrays have another layout than those of the
        others. Raises NotAdmitted on them."""
        group, comm = self._group, self._group.comm
        own = np.array([self._layout(), sum(array.size for array in self._result)])
        table = np.empty((comm.size, 2), np.int64)
        comm.allgather(own, table.reshape(-1))
        layout, count = table[group.whole[0]].tolist()
        misfits = {
            rank: f"rank {group.members[rank]} cannot join in {self.name}: it sums {other} values,"
            f" and the others {count}. The program has frozen, unfrozen, added or removed"
            " parameters inside of its loop; do so between two calls of job.steps, which a joining"
            " worker executes as well"
            for rank, (digest, other) in enumerate(table.tolist())
            if rank not in group.whole and digest != layout
        }
        if comm.rank in misfits:
            with suppress(PeerLost):
                comm.barrier()
            raise NotAdmitted(misfits[comm.rank])
        if misfits:
            comm.barrier()  # all have the table
            for rank, why in misfits.items():
                comm.expel(rank, why)
            comm.barrier()

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
        audit, audits = self._audit, self._audits()
        check = self._checksum() if audits or self.number % CHECK_EVERY == 0 else 0
        saver = self._group.saver
        plan = self._membership.word() if self._membership else 0
        word = saver.word if saver else 0
        here = not self._group.observes
        words = [self.number, -self.number, check, -check, word, plan, -plan, here]
        if audit:
            words.append(NOTHING if audit.first is None else audit.first)
            for worker in audits:
                words += self._digest_words(worker)
        vote = np.array(words)
        self._group.comm.allreduce(vote, op="min")
        if vote[0] != -vote[1]:
            raise RuntimeError(f"ranks vote on steps {vote[0]} and {-vote[1]} at once")
        if vote[2] != -vote[3]:
            if audit:
                self._contest_sum(check)
            raise RuntimeError(
                f"the ranks differ in {self.name}: this rank's checksum is {check:#x}, all"
                f" are from {vote[2]:#x} to {-vote[3]:#x}"
            )
        if audit:
            for worker, least, most in zip(audits, vote[9::2], vote[10::2], strict=True):
                if least != -most and least != NOTHING:
                    self._contest(worker)
                    return
            self._end_audits(audits, int(vote[8]))
        if saver:
            saver.agree(int(vote[4]))
        if self._membership:
            self._membership.voted(int(vote[5]), -int(vote[6]))
        if vote[7]:
            self._group.observing = frozenset()
        self.phase = Phase.AGREED

    def _end_audits(self, audits: Mapping[int, int], first: int) -> None:
        """No audit has found anything, or it is known what follows: results may be wrong since the
        step `first`."""
        group, audit = self._group, self._audit
        assert audit
        audit.first = None if first == NOTHING else first
        if audits and not self.recovery and not group.observes:
            audit.found_right(audits, group.owners, group.members)

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
