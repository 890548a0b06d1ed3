# SPDX-License-Identifier: Apache-2.0
"""One step on one rank: shares, their ordered sums, the vote, and the recovery from failures.

    COMPUTE   compute the shares of the logical workers that this rank owns
    REDUCE    compute the ordered sums of all ranks' shares, one for each array
    VOTE      run one more operation: once it ends on any rank, all ranks have the result
    AGREED    the result may be applied

When a rank dies, the others return to an earlier phase, see reform.py. The partial sums are kept
until the vote.

The first share of a rank that has joined is computed by an older rank, too, and the vote compares
both. A difference is reported as hidden state of the program.

In an audited step a rank first computes a share of another rank, and the vote compares the digests
of both computations, and of the ranks' states, see audit.py. If the digests of a share differ,
ranks compute the share again and repeat the vote until the wrong rank is known. The other ranks
then continue as they do after a death.

In the backward pass of a rank's last share, the sums of the first arrays start while the later
arrays are computed. All ranks start the sums in the order of the arrays. If a round has a wire
format, its averages (packed.py) start after the last share.

The thread of the backward pass starts the sums through Watch.submit. When the watch finds the comm
dead, its thread leaves the comm, and no further sum is started on it. The remaining sums start
after the backward pass, when the watch has ended.

The rank waits for the sums after its last share. It also waits before it continues after a failure,
because arrays may change only when no sum reads them. Sums end when their comm dies.

After a failure, the remaining arrays of the current share are still added to the partial sums, each
once, even if their sums have started. The next comm repeats all sums, because other ranks may not
have received them.
"""

from __future__ import annotations

import hashlib
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import lru_cache
from typing import Any

import numpy as np

import ddl_core
from ddl_core import Comm, Order, Work
from ddl_core.errors import DdlError, PeerLost
from ddl_elastic.base.audits import AuditError
from ddl_elastic.base.protocol import AuditFinding
from ddl_elastic.frameworks.protocol import Array, Ready, Share, Summed
from ddl_elastic.sharded.shards import Shards
from ddl_elastic.step.audit import (
    NOTHING,
    STATE,
    SUM,
    Audit,
    AuditOutcome,
    describe,
    describe_difference,
    describe_joined,
    gather,
    judge,
    plan_joined,
)
from ddl_elastic.step.digest import ShareDigest
from ddl_elastic.step.membership import Membership, NotAdmitted, close
from ddl_elastic.step.packed import WIRES, PackedAverage
from ddl_elastic.step.partial import PartialSums, add_arrays
from ddl_elastic.step.reform import (
    LOST,
    Action,
    RankProgress,
    Survivors,
    Watch,
    decide,
    may_have_agreed,
)
from ddl_elastic.step.sums import Sums
from ddl_elastic.step.transfer import Sender
from ddl_elastic.storage.saving import Saver

CHECK_EVERY = 64  # steps between two comparisons of the ranks' results


class HandOverCancelled(Exception):
    """Error: a rank has died while the ranges moved for a planned switch, so the switch is
    cancelled."""


class Phase(Enum):
    COMPUTE = auto()
    REDUCE = auto()
    VOTE = auto()
    AGREED = auto()


@dataclass
class RankGroup:
    """The ranks of a job. Deaths change the ranks, and each step may change the owners."""

    comm: Comm
    members: list[int]  # by rank: a number that stays the same for the life of the job
    owners: tuple[int, ...]  # by logical worker: the rank that computes its share, or -1
    watch: Watch = field(default_factory=Watch)
    sums: Sums = field(default_factory=Sums)
    saver: Saver | None = None
    membership: Membership | None = None  # None if no worker can join or leave
    speeds: Mapping[int, float] = field(default_factory=dict)  # by member; empty means equal speeds
    # Members without shares: they do not have the state yet, or are about to catch up.
    observing: frozenset[int] = frozenset()
    # Members that have joined, and whose first share has not been compared yet.
    joined: frozenset[int] = frozenset()
    observes: bool = False  # True while this rank's program is behind the other ranks
    sender: Sender = field(default_factory=Sender)
    sends_at: int | None = None  # the number of the step before which the state is sent
    is_awaited: bool = False  # the other ranks wait until this rank's program takes part
    writer_is_done: bool = False  # the rank that wrote files has finished and left
    audit: Audit | None = None  # None if no share is compared
    shards: Shards | None = None  # None if each rank has the whole state

    def __post_init__(self) -> None:
        self.watch.watchdog.spares = self._receiving

    def _receiving(self) -> list[int]:
        """Return the ranks that are currently receiving the state from this rank."""
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
        """The ranks that have the job's state: all except the observing ranks."""
        return [rank for rank, member in enumerate(self.members) if member not in self.observing]

    def observed_by(self, members: frozenset[int], sends_at: int) -> None:
        """Set the observing members, and the step before which they get the state."""
        self.observing = members
        self.sends_at = sends_at if members else None

    @property
    def owned(self) -> frozenset[int]:
        return _owned(self.owners, self.comm.rank)


@dataclass
class Recovery:
    """The cost of the failures in a step."""

    step: int
    died: list[int]  # members
    adopted: int = 0  # shares of dead ranks that survivors computed again, on all ranks together
    seconds: float = 0.0  # from the first notice on this rank to the agreement on the step


@dataclass(frozen=True)
class PlainArrays:
    """Plain NumPy arrays as a ddl_elastic.frameworks.protocol.Summed, without a framework."""

    arrays: Share
    op: str = "average"

    def result(self) -> Share:
        return self.arrays

    def ops(self) -> Sequence[str]:
        return [self.op] * len(self.arrays)

    def free(self, share: Share) -> None:
        """Do nothing: shares do not reuse arrays."""


@lru_cache(maxsize=4)
def _owned(owners: tuple[int, ...], rank: int) -> frozenset[int]:
    return frozenset(worker for worker, owner in enumerate(owners) if owner == rank)


@lru_cache(maxsize=4)
def _order(owners: tuple[int, ...], ranks: int) -> Order:
    """Return the order of these owners. Equal owners get the same object, because libddl caches its
    plans by order object."""
    return Order(owners, ranks)


class Step:
    """One step. For each worker that `shares` yields, the caller computes and `add`s its share.

    Afterwards the result holds the averages or sums over all logical workers, with the same bits on
    all ranks.

    summed      provides the result arrays and their operations
    name        the step's name in messages
    may_switch  True if the ranks may agree on a plan in this step
    trains      True for a training step; observing ranks take part in no other steps
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
        self._noticed = 0.0  # time of the first failure
        self.behind = False  # another rank has already committed this step
        self.first_left = False  # recovery has shown that rank 0 committed this and left
        self.follows = False  # recovery has shown that others have left for the planned comm
        self._group = group
        # By array and worker: the shares of the arrays that are averaged in a wire format.
        self._packed: dict[int, dict[int, Array]] = {
            number: {} for number, op in enumerate(self._ops) if op in WIRES
        }
        add_to = getattr(summed, "add", add_arrays)  # a framework may bring its own addition
        self._partial = PartialSums(group.workers, summed.free, add_to, skip=self._packed)
        self._works: list[Work[Any] | PackedAverage] = []  # the started sums, by array
        self._shards = group.shards
        self._audit = group.audit if trains else None
        self.is_audit = False  # whether the share that was yielded last is for an audit
        self._digests: dict[int, list[ShareDigest]] = {}  # by worker: of its computations here
        self._state: ShareDigest | None = None  # of the state before the step, if it is audited
        self._named: set[int] = set()  # whose shares have shown hidden state
        self._audited: set[int] = set()  # whose shares this rank has computed for an audit
        self._contested = -1  # the worker whose share this rank must compute again

    def add(self, worker: int, share: Share) -> None:
        """Add the share of a worker, a list of arrays of one dimension. The arrays belong to the
        step until it calls `free`."""
        for number, packed in self._packed.items():
            packed[worker] = ddl_core.pack(share[number], self._ops[number])
        self._partial.add(worker, share)

    def early(self, worker: int) -> Ready | None:
        """Return a callback that adds the first arrays of the worker's share as soon as they are
        computed, and starts their sums. Return None if this is not this rank's last share."""
        missing = self._group.owned - self._partial.held
        if self._group.observing or missing != {worker} or self.is_audit or self._packed:
            return None
        if self._shards and not self._shards.is_settled(self._group.comm):
            return None

        def ready(share: Share, count: int) -> None:
            self._partial.add(worker, share, count)
            with suppress(*LOST):  # the watch will notice it, too
                self._group.watch.submit(lambda: self._submit(count))

        return ready

    def shares(self) -> Iterator[int]:
        """Yield the logical workers whose shares this rank must compute, until the step is agreed
        on. After a death it also yields the adopted workers."""
        while self.phase is not Phase.AGREED:
            try:
                self._prepare()
                yield from self._missing()
                self._reduce()
                self._vote()
            except LOST:
                self._recover(time.monotonic())
        self._partial.clear()
        if self.recovery:
            self.recovery.seconds = time.monotonic() - self._noticed

    def enter(self) -> None:
        """Prepare this rank for the step, even after deaths, without computing anything."""
        while True:
            try:
                self._prepare()
                return
            except LOST:
                self._recover(time.monotonic())

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
                self._recover(watch.noticed, found)

    def _find_missing(self) -> list[tuple[int, bool]]:
        """Return the workers whose shares this rank must compute, each with True for an audit."""
        if self.phase is Phase.VOTE:
            return [(self._contested, True)] if self._contested >= 0 else []
        rank, audits = self._group.comm.rank, self._audits()
        audited = sorted({v for v, by in audits.items() if by == rank} - self._audited)
        missing = sorted(self._group.owned - self._partial.held)
        return [*((v, True) for v in audited), *((v, False) for v in missing)]

    # ---- audits ----

    def _audits(self) -> Mapping[int, int]:
        """Return the workers whose shares are compared, each with the rank that repeats its
        share."""
        group, audit = self._group, self._audit
        if not audit:
            return {}
        audits = audit.plan(self.number, group.owners)
        return {**audits, **plan_joined(group.owners, self._joined())} if group.joined else audits

    def _joined(self) -> list[int]:
        """Return the ranks that have joined, and whose first share is compared in this step."""
        group = self._group
        if not group.joined:
            return []
        owners = {*group.owners}
        return [r for r, each in enumerate(group.members) if r in owners and each in group.joined]

    @property
    def has_audits(self) -> bool:
        """True if this step is audited."""
        return bool(self._audit and self._audit.plan(self.number, self._group.owners))

    def record_state(self, digest: ShareDigest) -> None:
        """Record the state before the step."""
        self._state = digest

    def needs_digest(self, worker: int) -> bool:
        """Return True if the digest of the worker's share must be recorded."""
        return self.is_audit or worker in self._audits()

    def record(self, worker: int, digest: ShareDigest) -> None:
        """Record the digest of the worker's share as this rank has computed it."""
        self._digests.setdefault(worker, []).append(digest)
        if self.is_audit:
            self._audited.add(worker)
            self._contested = -1

    def _audit_words(self, audits: Mapping[int, int]) -> list[int]:
        """Return the words that a vote adds for audits. Their minima give all ranks the smallest
        and the largest digest of the state and of each audited share."""
        digests = [
            [self._state] if self._state else [],
            *(self._digests.get(v, []) for v in audits),
        ]
        found = list[int]()
        for each in digests:
            words = [digest.word for digest in each]
            found += min(words, default=NOTHING), -max(words, default=-NOTHING)
        return found

    def _contest_any(self, check: int, vote: Sequence[int], differing: Sequence[int]) -> bool:
        """Contest the difference that the vote has found. Return False if it has found none."""
        if vote[2] != -vote[3]:
            self._contest_whole(SUM, ShareDigest({"": check}))
        elif differing and differing[0] == STATE:
            self._contest_whole(STATE, self._state)
        elif differing:
            self._contest(differing[0])
        else:
            return False
        return True

    def _report_joined(self, differing: Sequence[int]) -> None:
        """Report the ranks whose first share has other bits than an older rank's computation."""
        group, audit = self._group, self._audit
        assert audit
        joined = plan_joined(group.owners, self._joined())
        for worker in sorted(joined.keys() & {*differing} - self._named):
            digests = self._digests.get(worker, ())
            marks = audit.marks() if digests else None
            table = gather(group.comm, audit.evidence(group.member, digests, marks))
            self._named.add(worker)
            audit.report_hidden(*describe_joined(table, group.joined, audit.step, worker))

    def _contest(self, worker: int) -> None:
        """Handle different digests of the worker's share. All ranks get the same verdict."""
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

    def _contest_whole(self, what: int, own: ShareDigest | None) -> None:
        """Handle different sums of the ranks (SUM), or different states before the step (STATE)."""
        group, audit = self._group, self._audit
        assert audit
        table = gather(group.comm, audit.evidence(group.member, [own] if own else []))
        self._end_contest(*describe_difference(table, audit.step, what))

    def _end_contest(self, ranks: Sequence[int], finding: AuditFinding) -> None:
        """Report the finding. Raises AuditError on the ranks that computed wrongly, which leave the
        comm, and on all ranks if the job cannot continue. Raises Aborted on the remaining ranks,
        which then continue as they do after a rank's death. They do not expel the other ranks: an
        expelled rank that then leaves still counts in the vote of the survivors."""
        comm, audit = self._group.comm, self._audit
        assert audit
        audit.found(finding)
        if finding.stops or comm.rank in ranks:
            if self._group.saver:
                self._group.saver.wait()  # it writes nothing after the others remove checkpoints
            with suppress(*LOST):
                comm.barrier()
            if not finding.stops:
                close(comm)
            raise AuditError(finding.text)
        if finding.share != SUM:
            self.phase = Phase.COMPUTE  # the result may have a wrong share in it
        if self._membership:
            self._membership.voted(0, 0)  # the ranks that leave have not switched to a plan's comm
        comm.barrier()  # all have the finding
        comm.abort("some ranks compute wrongly")
        comm.barrier()

    # ---- the sums and the vote ----

    def _reduce(self) -> None:
        if self.phase is Phase.VOTE:
            return
        self._prepare()  # the watch may have replaced the comm
        self.phase = Phase.REDUCE
        if self._group.observing:
            self._tell_kind()
        self._submit(len(self._result))
        for work in self._works:
            work.wait()
        self._works.clear()
        if self._shards and self._trains:
            self._works = [*self._shards.spread()]
            for work in self._works:
                work.wait()
            self._works.clear()
            self._shards.gather_squares()
        self.phase = Phase.VOTE

    def _prepare(self) -> None:
        """Move the ranges of a sharded state to their holders, because the next sums need them
        there."""
        if self._shards and self.phase is not Phase.VOTE:
            self._shards.prepare(self._group.comm, self._group.members, self._trains)

    def _tell_kind(self) -> None:
        """Let observing ranks take part in a training step whose arrays have the layout that they
        know. Otherwise wait until their programs reach this step."""
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
        """Expel joining workers whose arrays have another layout than the other ranks' arrays.
        Raises NotAdmitted on those workers."""
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
        """Wait until the programs of all ranks reach this step. Expel ranks that still lack the
        state, because it is sent only before training steps."""
        group = self._group
        if group.sends_at is not None:
            for rank in range(group.comm.size):
                if rank not in group.whole:
                    group.comm.expel(rank, "the ranks that sent it the state have died")
        group.comm.barrier()

    def _submit(self, count: int) -> None:
        """Start the sums of the first `count` arrays that have not started yet."""
        comm = self._group.comm
        order = _order(self._group.owners, comm.size)
        nodes = order.parts(comm.rank)
        for number in range(len(self._works), count):
            recv, counts, op = self._result[number], None, self._ops[number]
            if number in self._packed:
                shares = self._packed[number]
                self._works.append(PackedAverage(comm, self._group.owners, shares, recv, op))
                continue
            brought = self._partial.arrays(nodes, number)
            if self._shards and self._trains and number < self._shards.arrays:
                recv, counts = self._shards.target(number)
            work = self._group.sums.start(number, comm, order, brought, recv, op, counts)
            self._works.append(work)

    def _settle(self) -> None:
        """Wait, after the comm has died, until no sum reads the arrays any more."""
        for work in self._works:
            with suppress(DdlError):
                work.settle() if isinstance(work, PackedAverage) else work.wait()
        self._works.clear()

    def _vote(self) -> None:
        """Run the vote. A rank votes only when it has the sums of the step, so when the vote ends
        on any rank, all ranks have these sums."""
        audit, audits = self._audit, self._audits()
        check = self._checksum() if audits or self.number % CHECK_EVERY == 0 else 0
        saver = self._group.saver
        plan = self._membership.word() if self._membership else 0
        word = saver.word if saver else 0
        here = not self._group.observes
        words = [self.number, -self.number, check, -check, word, plan, -plan, here]
        if audit:
            words.append(NOTHING if audit.first is None else audit.first)
            words += self._audit_words(audits)
        vote = np.array(words)
        self._group.comm.allreduce(vote, op="min")
        if vote[0] != -vote[1]:
            raise RuntimeError(f"ranks vote on steps {vote[0]} and {-vote[1]} at once")
        if audit:
            differing = [
                what
                for what, least, most in zip([STATE, *audits], vote[9::2], vote[10::2], strict=True)
                if least != -most and least != NOTHING
            ]
            self._report_joined(differing)
            if audit.rate and self._contest_any(check, vote.tolist(), differing):
                return
        if vote[2] != -vote[3]:
            raise RuntimeError(
                f"the ranks differ in {self.name}: this rank's checksum is {check:#x}, and the"
                f" checksums of all ranks are from {vote[2]:#x} to {-vote[3]:#x}"
            )
        if audit:
            self._end_audits(audits, int(vote[8]))
        if saver:
            saver.agree(int(vote[4]))
        if self._membership:
            self._membership.voted(int(vote[5]), -int(vote[6]))
        if vote[7]:
            self._group.observing = frozenset()
        self.phase = Phase.AGREED

    def _end_audits(self, audits: Mapping[int, int], first: int) -> None:
        """Record the end of the step's audits. `first` is the first step whose results may be
        wrong, or NOTHING."""
        group, audit = self._group, self._audit
        assert audit
        audit.first = None if first == NOTHING else first
        group.joined -= {group.members[rank] for rank in self._joined()}
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
        if self._hands_over:
            follows = self.follows
        own = RankProgress(group.member, self.number, has_result, group.owned, self._is_whole())
        is_new, plan = group.member in group.joined, membership.ballot if membership else 0
        return replace(own, follows=follows, has_begun=True, is_new=is_new, plan=plan)

    def _is_whole(self) -> bool:
        """Return True if this rank has the state."""
        return True

    @property
    def _hands_over(self) -> bool:
        """True if ranges move in this step before a planned switch."""
        return self._shards is not None and self._shards.keepers is not None

    def _recover(self, noticed: float, found: Survivors | None = None) -> None:
        """Continue with the survivors, in their comm if the watch has already created it.
        Raises HandOverCancelled if ranges were moving and no rank has switched yet: the next step
        then has this step's number."""
        self._settle()
        group = self._group
        group.is_awaited = False
        if found is None:
            standing = self._standing()
            found = group.watch.survivors(group.comm, standing, group.workers, group.members)
        comm, ranks, died = found
        self.follows = any(each.follows for each in ranks)
        is_cancelled = self._hands_over and not self.follows
        if is_cancelled:
            ranks = [replace(r, has_result=r.has_result and r.step < self.number) for r in ranks]
        decision = decide(ranks, comm.rank, group.workers)
        lacking = frozenset(each.member for each in ranks if not each.whole)
        group.observed_by(lacking, decision.step + 1)
        group.joined = frozenset(each.member for each in ranks if each.is_new)
        self.first_left = self.first_left or any(each.first_left for each in ranks)
        if group.membership:
            group.membership.recovered(self.follows and may_have_agreed(ranks))
        if self.recovery is None:
            self.recovery, self._noticed = Recovery(self.number, []), noticed
        has_switched = group.membership is not None and group.membership.is_agreed
        missing = sorted({*group.members} - {each.member for each in ranks})
        self.recovery.died += died if has_switched else missing
        group.comm, group.owners = comm, decision.owners
        group.members = [each.member for each in ranks]
        if is_cancelled:
            raise HandOverCancelled
        if decision.action is Action.APPLY:
            self.phase, self.behind = Phase.AGREED, True
        elif decision.action is Action.COMPUTE:
            self.phase = Phase.COMPUTE
            self.recovery.adopted += decision.adopted
