"""What was measured: turns, those that count, and their sum."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.cases import Case, Contestant
from bench.machine import State

STATES = ("near", "far")
LIMIT = "limit"  # the library name of the roofline's rows


@dataclass
class Turn:
    """One library's turn: `seconds` of each iteration, and the machine's state around it."""

    contestant: Contestant
    seconds: list[float]
    before: State
    after: State

    @property
    def changed(self) -> bool:
        """Whether the cores moved meanwhile: then the turn belongs to neither state."""
        return self.before.name != self.after.name

    @property
    def disturbed(self) -> bool:
        """Whether something else ran before and after it, so probably meanwhile."""
        return min(self.before.others, self.after.others) > 0


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest value that at least the part q of all does not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(q * len(ordered)) - 1, 0)]


@dataclass
class Row:
    """One contestant in one state of the machine. Seconds per call; `turns` that counted."""

    contestant: Contestant
    state: str
    p50: float
    p99: float
    best: float
    turns: int
    iterations: int


@dataclass
class Result:
    """A case on some ranks. `limit` is the least number of seconds that was measured for the bare
    memory or the wire, for each state; empty where there is none."""

    case: Case
    scene: str
    ranks: int
    rows: list[Row] = field(default_factory=list)
    limit: dict[str, float] = field(default_factory=dict)
    changed: int = 0  # turns that do not count since the machine changed its state
    disturbed: int = 0  # and those that do not since something else ran
    busy: bool = False  # disturbed ones count, since for some contestant there are no others
    notes: list[str] = field(default_factory=list)

    def row(self, contestant: Contestant, state: str) -> Row | None:
        """Of this contestant in this state."""
        for row in self.rows:
            if row.contestant == contestant and row.state == state:
                return row
        return None

    def states(self) -> list[str]:
        """Those there are rows for."""
        return [s for s in STATES if any(r.state == s for r in self.rows)]

    def best_peer(self, state: str, ours: Iterable[str], way: str = "") -> Row | None:
        """The fastest of the libraries that are not ours, called this way."""
        peers = [
            r
            for r in self.rows
            if r.state == state and r.contestant.library not in ours and r.contestant.way == way
        ]
        return min(peers, key=lambda r: r.p50, default=None)

    def as_json(self) -> dict[str, Any]:
        """For programs: times in seconds, bandwidths in bytes per second."""
        rows = []
        for row in self.rows:
            shown = asdict(row)
            shown.update(shown.pop("contestant"))
            shown["algorithm_bandwidth"] = self.case.bytes / row.p50
            shown["bus_bandwidth"] = self.case.bytes / row.p50 * self.case.bus_factor(self.ranks)
            rows.append(shown)
        head = {**asdict(self.case), "scene": self.scene, "ranks": self.ranks}
        head |= {"changed": self.changed, "disturbed": self.disturbed, "busy": self.busy}
        head |= {"notes": self.notes}
        return {**head, "rows": rows, "limit": self.limit}


def summarize(
    case: Case, scene: str, ranks: int, turns: Sequence[Turn], busy: bool = False
) -> Result:
    """Turns of one state together, without those that changed state. Disturbed ones count where
    they must (`busy`): when a contestant has no others, all of the case do."""
    result = Result(case, scene, ranks)
    steady = [t for t in turns if not t.changed]
    quiet = [t for t in steady if not t.disturbed]
    result.changed = len(turns) - len(steady)
    result.busy = busy or {t.contestant for t in quiet} != {t.contestant for t in steady}
    if not result.busy:
        result.disturbed = len(steady) - len(quiet)
    together: dict[tuple[Contestant, str], list[Turn]] = {}
    for turn in steady if result.busy else quiet:
        together.setdefault((turn.contestant, turn.before.name), []).append(turn)
    for (contestant, state), kept in together.items():
        seconds = [s for turn in kept for s in turn.seconds]
        p50 = quantile(seconds, 0.5)
        if contestant.library == LIMIT:
            result.limit[state] = min(p50, result.limit.get(state, p50))
        else:
            row = Row(contestant, state, p50, quantile(seconds, 0.99), min(seconds), len(kept), 0)
            row.iterations = len(seconds)
            result.rows.append(row)
    result.rows.sort(key=lambda r: STATES.index(r.state))
    return result
