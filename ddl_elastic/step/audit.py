# SPDX-License-Identifier: Apache-2.0
"""Audits: a second rank computes some of the shares again, and the vote compares the results.

A share's bits do not depend on the rank that computes it. A difference therefore shows a machine
that computes wrongly, or a program with hidden state. Before the step is committed, a third rank
computes the share, and the rank that alone differs is expelled. If there are only two ranks, each
computes the share REPEATS times, and a rank that does not reproduce its own bits is expelled.

The vote on an audited step compares the ranks' states as well: the shares alone would not show a
wrong weight that does not affect an audited share, or whose effect is rounded away. A rank whose
state differs from the state of most ranks is expelled.

If a rank repeats its wrong bits, it computed correctly in its last audited step. If it does not
repeat them, it is wrong only sometimes. A correct audited share then proves nothing about its other
shares, so all its shares that were not audited may be wrong.

The first share of a rank that has joined is compared in each job: a difference shows state that the
rank was not sent. Without audits it is only reported.

`plan` chooses the audited shares and the ranks that repeat them, from numbers that all ranks have.
In an audited step one share of each rank is audited, and each rank repeats one share. So the rate
of audits is also the fraction by which steps become longer.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum, auto
from functools import lru_cache
from itertools import cycle
from typing import Any

import numpy as np

from ddl_core import Comm
from ddl_elastic.base.audits import Action
from ddl_elastic.base.protocol import AuditFinding
from ddl_elastic.step.digest import ShareDigest

REPEATS = 3  # computations of a share on each rank, where there is no third rank
NOTHING = (1 << 63) - 1  # in a vote: the rank has nothing to compare
SUM, STATE = -1, -2  # in place of a share in a finding: the sum of all shares, the state


# ---- which shares ----


@lru_cache(maxsize=8)
def plan(rate: float, seed: int, number: int, owners: tuple[int, ...]) -> Mapping[int, int]:
    """Return the audited logical workers of a step, each with the rank that repeats its share.
    Every share is audited with probability `rate`."""
    if not rate:
        return {}
    shares = _shares(owners)
    ranks = sorted(shares)
    most = max(map(len, shares.values()), default=0)
    chance, *keys = _draw(seed, number, most)
    count = int(rate * most + chance / 2**64)
    if not count:
        return {}
    found = dict[int, int]()
    for place in sorted(range(most), key=keys.__getitem__)[:count]:
        shift = 1 + keys[place] % max(1, len(ranks) - 1)
        for index, rank in enumerate(ranks):
            if place < len(shares[rank]):
                found[shares[rank][place]] = ranks[(index + shift) % len(ranks)]
    return found


def plan_joined(owners: tuple[int, ...], joined: Collection[int]) -> Mapping[int, int]:
    """Return the first share of each rank that has joined, and the older rank that repeats it.

    joined  ranks that own shares
    """
    shares = _shares(owners)
    older = [rank for rank in sorted(shares) if rank not in joined]
    return dict(zip((shares[rank][0] for rank in sorted(joined)), cycle(older), strict=False))


@lru_cache(maxsize=8)
def _shares(owners: tuple[int, ...]) -> Mapping[int, Sequence[int]]:
    """Return each rank's logical workers, without the ranks that have none."""
    found: dict[int, list[int]] = {}
    for worker, owner in enumerate(owners):
        if owner >= 0:
            found.setdefault(owner, []).append(worker)
    return found


def _draw(seed: int, number: int, places: int) -> list[int]:
    """Return at least `places` + 1 pseudo-random 64-bit numbers, derived from the seed and
    `number`."""
    found = list[int]()
    while len(found) <= places:
        data = struct.pack("<3q", seed, number, len(found))
        digest = hashlib.blake2b(data, digest_size=64, person=b"ddl audit").digest()
        found += struct.unpack("<8Q", digest)
    return found


# ---- who is wrong ----


class AuditOutcome(Enum):
    AGREE = auto()  # the computations agree, for example because a rank has died
    COMPUTE = auto()  # `ranks` must compute the share again
    EXPEL = auto()  # `ranks` compute wrongly
    BOTH = auto()  # each of two ranks reproduces its own bits
    UNSTEADY = auto()  # the only rank does not reproduce its bits
    PROGRAM = auto()  # no two computations agree


@dataclass(frozen=True)
class Verdict:
    outcome: AuditOutcome
    ranks: Sequence[int] = ()


def judge(computed: Mapping[int, Sequence[int]], able: Sequence[int]) -> Verdict:
    """Return the verdict on the digests of one share. Pure.

    computed  the digests of each rank's computations
    able      the ranks that can compute the share
    """
    holders = {rank: words for rank, words in computed.items() if words}
    if len({word for words in holders.values() for word in words}) < 2:
        return Verdict(AuditOutcome.AGREE)
    if len({*able, *holders}) < 3:
        return _judge_repeats({rank: computed.get(rank, ()) for rank in {*able, *holders}})
    others = [rank for rank in able if rank not in holders]
    if len(holders) < 3:
        return Verdict(AuditOutcome.COMPUTE, others[: 3 - len(holders)])
    counts = Counter(words[0] for words in holders.values())
    common, votes = counts.most_common(1)[0]
    if 2 * votes <= len(holders):
        return Verdict(AuditOutcome.PROGRAM, sorted(holders))
    wrong = [rank for rank, words in holders.items() if {*words} != {common}]
    if lacking := [rank for rank in wrong if len(holders[rank]) < REPEATS]:
        return Verdict(AuditOutcome.COMPUTE, lacking)  # does each rank reproduce its bits?
    return Verdict(AuditOutcome.EXPEL, wrong)


def _judge_repeats(computed: Mapping[int, Sequence[int]]) -> Verdict:
    lacking = [rank for rank, words in computed.items() if len(words) < REPEATS]
    if lacking:
        return Verdict(AuditOutcome.COMPUTE, lacking)
    unsteady = [rank for rank, words in computed.items() if len({*words}) > 1]
    if len(computed) > 1 and not unsteady:
        return Verdict(AuditOutcome.BOTH, sorted(computed))
    if len(computed) > 1 and len(unsteady) == 1:
        return Verdict(AuditOutcome.EXPEL, unsteady)
    if len(computed) == 1 and len({*computed[unsteady[0]]}) < REPEATS:
        return Verdict(AuditOutcome.UNSTEADY, unsteady)
    return Verdict(AuditOutcome.PROGRAM, sorted(computed))


# ---- what ranks report ----


@dataclass(frozen=True)
class Evidence:
    """A rank's record of a share, or of a sum, whose computations differ."""

    member: int
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    computed: Sequence[Mapping[str, int]] = ()  # the CRC-32 of each tensor, for each computation
    # For each member, the first step after its last correct audited share (trusted), and its first
    # step without a full audit (whole). The key "" holds the default. Empty if unknown.
    trusted: Mapping[str, int] = field(default_factory=dict)
    whole: Mapping[str, int] = field(default_factory=dict)
    # The marks of attributes outside of the job's state, by name; see ddl_elastic/hidden/.
    hidden: Mapping[str, str] = field(default_factory=dict)

    @property
    def digests(self) -> list[ShareDigest]:
        return [ShareDigest(each) for each in self.computed]

    @property
    def name(self) -> str:
        return f"rank {self.member} on {self.host} (pid {self.pid})"


def gather(comm: Comm, own: Evidence) -> list[Evidence]:
    """Return the evidence of all ranks. Raises one of reform.LOST."""
    text = json.dumps(asdict(own)).encode()
    lengths = np.empty(comm.size, np.int64)
    comm.allgather(np.array([len(text)]), lengths)
    room = int(lengths.max())
    table = np.empty((comm.size, room), np.uint8)
    comm.allgather(np.frombuffer(text.ljust(room), np.uint8), table.reshape(-1))
    return [Evidence(**json.loads(row.tobytes())) for row in table]


def describe(verdict: Verdict, table: Sequence[Evidence], step: int, share: int) -> AuditFinding:
    """Return the finding for a verdict that ends a contest. Pure."""
    named = [table[rank] for rank in verdict.ranks]
    tensor = _find_tensor(verdict, table)
    names = " and ".join(each.name for each in named)
    where = f"step {step}, share {share}, tensor {tensor}"
    hosts = ", ".join(sorted({each.host for each in named}))
    texts = {
        AuditOutcome.EXPEL: f"{names} computes wrongly: its bits differ from the other computations"
        f" of the same share in {where}. It is expelled. Test the memory and the processor of"
        f" {hosts}",
        AuditOutcome.BOTH: f"{names} compute different bits in {where}, and each repeats its own,"
        " so it is unknown which one computes wrongly. Run the job on other hosts, or on three",
        AuditOutcome.UNSTEADY: f"{names} does not repeat its own bits in {where}, so its machine"
        f" computes wrongly. Run the job on another host than {hosts}",
        AuditOutcome.PROGRAM: f"the program has hidden state: no two computations agree in {where}"
        f" ({names}). Random numbers come from torch, numpy or random, and state belongs into the"
        " model, the optimizer or also=",
    }
    stops = verdict.outcome != AuditOutcome.EXPEL
    members = [each.member for each in named]
    first = 0 if verdict.outcome is AuditOutcome.PROGRAM else _first(table, verdict.ranks)
    return AuditFinding(
        step, share, members, tensor, min(first, step), stops, texts[verdict.outcome]
    )


def describe_difference(
    table: Sequence[Evidence], step: int, what: int
) -> tuple[Sequence[int], AuditFinding]:
    """Return the ranks whose sums or states differ from the sums or states of most ranks, and the
    finding. If no digest has a majority, return all ranks. Pure.

    what  SUM or STATE: the values that the digests describe
    """
    words = [each.digests[0].word if each.computed else NOTHING for each in table]
    counts = Counter(word for word in words if word != NOTHING)
    common, votes = counts.most_common(1)[0]
    is_known = 2 * votes > counts.total()
    ranks = [r for r, w in enumerate(words) if w != NOTHING and not (is_known and w == common)]
    other = table[words.index(common)].digests[0]
    differences = [table[rank].digests[0].first_difference(other) for rank in ranks]
    tensor = next(filter(None, differences), "") if what == STATE else "sum"
    names = " and ".join(table[rank].name for rank in ranks)
    hosts = ", ".join(sorted({table[rank].host for rank in ranks}))
    where = f"the state before step {step}, tensor {tensor}"
    if what == SUM:
        where = f"the sum of the shares of step {step}"
    text = (
        f"{names} computes wrongly: it differs from most ranks in {where}. It is expelled. Test the"
        f" memory and the processor of {hosts}"
    )
    if not is_known:
        text = (
            f"{names} differ in {where}, so it is unknown which one computes wrongly. Run the job"
            " on other hosts, or on three"
        )
    members = [table[rank].member for rank in ranks]
    first = step if what == SUM else min(_first(table, ranks), step)
    return ranks, AuditFinding(step, what, members, tensor, first, not is_known, text)


def describe_joined(
    table: Sequence[Evidence], joined: Collection[int], step: int, share: int
) -> tuple[str, Sequence[str]]:
    """Return a text about a member that has joined, and whose first share has other bits than an
    older member's computation. Also return the names of the hidden state in which the two members
    differ. Pure."""
    holders = [each for each in table if each.computed]
    new = next(each for each in holders if each.member in joined)
    old = next(each for each in holders if each.member not in joined)
    tensor = new.digests[0].first_difference(old.digests[0])
    names = [name for name, mark in new.hidden.items() if old.hidden.get(name, mark) != mark]
    return (
        f"{new.name} has joined, and computes other bits than {old.name} in step {step}, share"
        f" {share}, tensor {tensor}"
    ), names


def _find_tensor(verdict: Verdict, table: Sequence[Evidence]) -> str:
    """Return the first tensor in which these ranks differ from the other ranks, or "unknown"."""
    wrong = [each for rank in verdict.ranks for each in table[rank].digests]
    other = [
        each for rank, e in enumerate(table) if rank not in verdict.ranks for each in e.digests
    ]
    for one in wrong:
        for two in other or wrong:
            if name := one.first_difference(two):
                return name
    return "unknown"


def _first(table: Sequence[Evidence], ranks: Sequence[int]) -> int:
    """Return the first step in which one of the ranks may have been wrong."""
    known = [each for each in table if each.trusted]
    others = [each for rank, each in enumerate(table) if rank not in ranks and each.trusted]
    found = list[int]()
    for rank in ranks:
        member, is_steady = str(table[rank].member), len({e.word for e in table[rank].digests}) < 2
        each_known = [each.trusted if is_steady else each.whole for each in others or known]
        # A rank that has joined later may know less.
        found.append(max((each.get(member, each[""]) for each in each_known), default=0))
    return min(found, default=0)


# ---- one rank ----


class Audit:
    """The audits of a job, on one rank.

    rate    the fraction of shares that are audited
    action  the action if committed steps may be wrong
    start   the first step of the job, or of its continuation; None: not known yet
    report  called with each finding, on all ranks
    marks   returns this rank's marks of hidden state
    report_hidden  called with a text about a member that has joined, and the names of the hidden
            state in which it differs, on all ranks
    """

    def __init__(
        self,
        rate: float,
        action: Action,
        seed: int,
        report: Callable[[AuditFinding], None] = lambda _: None,
        marks: Callable[[], Mapping[str, str]] = dict,
        report_hidden: Callable[[str, Sequence[str]], None] = lambda *_: None,
    ) -> None:
        self.rate, self.action, self.report = rate, action, report
        self.marks, self.report_hidden = marks, report_hidden
        self._seed = seed
        self.step = 0  # the training step
        self.start: int | None = None
        self._trusted: dict[int, int] = {}  # see Evidence
        self._whole: dict[int, int] = {}
        self.first: int | None = None  # the first step that may be wrong, until `settled`

    def plan(self, number: int, owners: tuple[int, ...]) -> Mapping[int, int]:
        """Return this step's audited workers, see the function `plan`."""
        return plan(self.rate, self._seed, number, owners)

    def joined(self, members: Iterable[int], step: int) -> None:
        """Record that members join before `step`, and therefore cannot have computed wrongly in
        earlier steps."""
        for member in members:
            self._trusted[member] = self._whole[member] = step

    def known(self) -> dict[str, Any]:
        """Return the audit history that a joining rank needs, for its `learn`."""
        evidence = self.evidence(-1, [])
        return {"trusted": dict(evidence.trusted), "whole": dict(evidence.whole)}

    def learn(self, known: Mapping[str, Mapping[str, int]]) -> None:
        """Update this rank's audit history with the history of another rank."""
        self.start = known["trusted"].get("")
        for own, other in ((self._trusted, known["trusted"]), (self._whole, known["whole"])):
            own.update({int(member): step for member, step in other.items() if member})

    def trusted(self, members: Iterable[int]) -> int:
        """Return the first step that is not yet confirmed by audits of all the members."""
        return min((self._trusted.get(each, self.start or 0) for each in members), default=0)

    def found_right(
        self, audited: Mapping[int, int], owners: tuple[int, ...], members: Sequence[int]
    ) -> None:
        """Record that the computations of the audited shares agree."""
        for rank, shares in _shares(owners).items():
            right, member = len(audited.keys() & {*shares}), members[rank]
            if right:
                self._trusted[member] = self.step + (right == len(shares))
            if right == len(shares) and self._whole.get(member, self.start) == self.step:
                self._whole[member] = self.step + 1

    def evidence(
        self,
        member: int,
        computed: Sequence[ShareDigest],
        hidden: Mapping[str, str] | None = None,
    ) -> Evidence:
        """Return this rank's evidence on a share: its digests, its audit history, and the marks of
        its hidden state."""
        trusted, whole = (
            {} if self.start is None else {"": self.start, **{str(m): t for m, t in each.items()}}
            for each in (self._trusted, self._whole)
        )
        tensors = [dict(each.tensors) for each in computed]
        return Evidence(member, computed=tensors, trusted=trusted, whole=whole, hidden=hidden or {})

    def found(self, finding: AuditFinding) -> None:
        """Report a finding. Keep the first step that may be wrong until `settled` is called."""
        first = finding.first if self.first is None else min(self.first, finding.first)
        self.first = first
        self.report(finding)

    def settled(self, step: int) -> None:
        """Record that the job continues with this step and that all steps before it are correct."""
        self.first = None
        for known in (self._trusted, self._whole):
            known.update({member: min(t, step) for member, t in known.items()})
