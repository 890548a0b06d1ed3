# SPDX-License-Identifier: Apache-2.0
"""Turns, and their summary: one row for each candidate and state of the machine."""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.cases import Candidate, Case
from bench.machine import ALL_STATES, TAKEN, State

LIMIT = "limit"  # the limit's library name
SLOWED = 1.15  # from this multiple of the best pace on, another guest used the core


@dataclass
class Turn:
    """One candidate's turn: the seconds of each iteration, the machine's state before and after it,
    the number of its round, and the processor seconds per second of the busy loops beside it."""

    candidate: Candidate
    seconds: list[float]
    before: State
    after: State
    round: int = 0
    loops: float = 0.0

    @property
    def changed(self) -> bool:
        """Whether the cores moved during the turn, so that it belongs to neither state."""
        return self.before.name != self.after.name

    @property
    def disturbed(self) -> bool:
        """Whether another program ran before and after the turn, and thus probably during it."""
        return min(self.before.others, self.after.others) > 0


def quantile(values: Sequence[float], q: float) -> float:
    """Return the smallest value that at least the fraction q of all values does not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(q * len(ordered)) - 1, 0)]


@dataclass
class Row:
    """One candidate in one state of the machine. Times are seconds per call. `turns` is the number
    of turns that counted, `rounds` the median of each round, by number.

    Beside busy loops, p50 is the mean over the turns, and `rounds` has only this mean: a median
    hides the calls during which a rank did not run. `loops` is their processor time per second.
    """

    candidate: Candidate
    state: str
    p50: float
    p99: float
    best: float
    turns: int
    iterations: int
    rounds: dict[int, float] = field(default_factory=dict)
    loops: float = 0.0

    def times_as_fast_as(self, other: "Row") -> float | None:
        """Return the other row's time over this one's: the median over the rounds that both have.
        The machine's speed changes within seconds, so the ratio of the overall medians is less
        reliable."""
        return _quotient(other.rounds, self.rounds)


def _quotient(above: Mapping[int, float], below: Mapping[int, float]) -> float | None:
    common = above.keys() & below.keys()
    return statistics.median(above[n] / below[n] for n in common) if common else None


@dataclass
class Result:
    """A case on a number of ranks. `limit` has the least seconds measured for plain memory or the
    wire, by state; `limits` the same by state and round. Both are empty if there is no limit."""

    case: Case
    placement: str
    ranks: int
    rows: list[Row] = field(default_factory=list)
    limit: dict[str, float] = field(default_factory=dict)
    limits: dict[str, dict[int, float]] = field(default_factory=dict)
    changed: int = 0  # turns dropped because the machine changed its state
    disturbed: int = 0  # turns dropped because another program ran
    slowed: float = 0.0  # fraction of turns before which another guest used a core
    busy: bool = False  # disturbed turns count, because some candidate has no others
    notes: list[str] = field(default_factory=list)

    def row(self, candidate: Candidate, state: str) -> Row | None:
        for row in self.rows:
            if row.candidate == candidate and row.state == state:
                return row
        return None

    def states(self) -> list[str]:
        return [s for s in ALL_STATES if any(r.state == s for r in self.rows)]

    def often(self) -> list[str]:
        turns = {s: max(r.turns for r in self.rows if r.state == s) for s in self.states()}
        return [s for s, n in turns.items() if 3 * n >= max(turns.values())]

    def against_others(self, own: Row, ours: Collection[str], way: str = "") -> float | None:
        others = (
            own.times_as_fast_as(r)
            for r in self.rows
            if (r.state, r.candidate.way) == (own.state, way) and r.candidate.library not in ours
        )
        return min((o for o in others if o is not None), default=None)

    def of_limit(self, own: Row) -> float | None:
        if own.state in self.limits:
            return _quotient(self.limits[own.state], own.rounds)
        limit = self.limit.get(own.state)
        return limit / own.p50 if limit else None

    def as_json(self) -> dict[str, Any]:
        rows = []
        for row in self.rows:
            shown = asdict(row)
            shown.update(shown.pop("candidate"))
            shown["algorithm_bandwidth"] = self.case.bytes / row.p50
            shown["bus_bandwidth"] = self.case.bytes / row.p50 * self.case.bus_factor(self.ranks)
            rows.append(shown)
        head = {**asdict(self.case), "placement": self.placement, "ranks": self.ranks}
        head |= {"changed": self.changed, "disturbed": self.disturbed, "busy": self.busy}
        head |= {"slowed": self.slowed, "notes": self.notes}
        return {**head, "rows": rows, "limit": self.limit}


def summarize(
    case: Case, placement: str, ranks: int, turns: Sequence[Turn], busy: bool = False
) -> Result:
    """Group the turns by candidate and state, and drop those during which the state changed.

    Disturbed turns are dropped as well, unless `busy` is set or some candidate has no others.
    """
    result = Result(case, placement, ranks)
    steady = [t for t in turns if not t.changed]
    best = min((t.before.pace for t in turns), default=0.0)
    slow = sum(t.before.pace > SLOWED * best for t in turns)
    result.slowed = slow / len(turns) if turns else 0.0
    quiet = [t for t in steady if not t.disturbed]
    result.changed = len(turns) - len(steady)
    result.busy = busy or {t.candidate for t in quiet} != {t.candidate for t in steady}
    if not result.busy:
        result.disturbed = len(steady) - len(quiet)
    together: dict[tuple[Candidate, str], list[Turn]] = {}
    for turn in steady if result.busy else quiet:
        together.setdefault((turn.candidate, turn.before.name), []).append(turn)
    for (candidate, state), kept in together.items():
        seconds = [s for turn in kept for s in turn.seconds]
        p50 = quantile(seconds, 0.5)
        rounds = {turn.round: quantile(turn.seconds, 0.5) for turn in kept}
        if state == TAKEN:
            p50 = statistics.fmean(statistics.fmean(turn.seconds) for turn in kept)
            rounds = {0: p50}
        if candidate.library == LIMIT:
            result.limit[state] = min(p50, result.limit.get(state, p50))
            best = result.limits.setdefault(state, {})
            for number, one in rounds.items():
                best[number] = min(one, best.get(number, one))
        else:
            p99, count = quantile(seconds, 0.99), len(seconds)
            loops = statistics.fmean(turn.loops for turn in kept)
            row = Row(candidate, state, p50, p99, min(seconds), len(kept), count, rounds, loops)
            result.rows.append(row)
    order = list(ALL_STATES)
    result.rows.sort(key=lambda r: order.index(r.state))
    return result
