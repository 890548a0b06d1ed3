# SPDX-License-Identifier: Apache-2.0
"""The search for the rank that made a job fail. Pure.

When one rank fails, the others fail because they lost it. They often end before it, because a
process that raises an exception takes some time to end. The first end is therefore no evidence. A
rank whose error names another rank is a consequence. Of the remaining ranks, the root cause is the
one whose failure was known first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ddl_launch.errors import FAILED
from ddl_launch.jobs.failure import Failure

# The exit code does not contain the time of the failure. It counts as this many seconds later than
# a signal that killed, a lost host, or a reported exception.
_EXIT_TAKES = 0.3
# The form of libddl's messages about a lost member. In a job with one comm, the number is the rank
# in the world.
_LOSS = re.compile(r"rank (\d+) on [^\s:]+ (?:is dead|is lost|left the comm|hung up)")
_LAST_LINE = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:: .*)?$")


@dataclass
class RankState:
    """What is known about one rank.

    end       its exit code or signal; None while it runs
    at        the time when its end was noticed, in seconds
    raised    the exception that it reported at `raised_at`; "" if none
    tail      its last lines of output
    waits     True if it waits in the job's rendezvous
    joinings  the number of rendezvous that it has begun
    joined    the number of rendezvous that it has completed
    """

    end: Failure | None = None
    at: float = 0.0
    raised: str = ""
    raised_at: float = 0.0
    tail: Iterable[str] = ()
    waits: bool = False
    joinings: int = 0
    joined: int = 0

    @property
    def failed(self) -> bool:
        return self.end is not None and self.end.failed

    @property
    def blamed(self) -> int | None:
        """The other rank that this rank's error names as lost, or None."""
        lines = [self.raised] if self.raised else self.tail
        found = [int(rank) for line in lines for rank in _LOSS.findall(line)]
        return found[-1] if found else None

    @property
    def failed_at(self) -> float:
        """The time by which failures are ordered, in seconds."""
        if self.raised:
            return min(self.raised_at, self.at)
        certain = self.end is not None and (self.end.by_signal or self.end.lost)
        return self.at + (0.0 if certain else _EXIT_TAKES)


def find(ranks: Mapping[int, RankState]) -> tuple[int, bool]:
    """Return the rank that is the root cause. Also return True if a blamed rank is still running,
    since its end may change the answer. At least one rank must have failed."""
    failed = [rank for rank, state in ranks.items() if state.failed]
    blamed_by: dict[int, list[int]] = {}
    for rank in failed:
        whom = ranks[rank].blamed
        if whom is not None and whom != rank and whom in ranks:
            blamed_by.setdefault(whom, []).append(rank)
    blamers = {rank for others in blamed_by.values() for rank in others}

    def order(rank: int) -> tuple[float, bool, int]:
        state = ranks[rank]
        times = [ranks[other].failed_at for other in blamed_by.get(rank, [])]
        times += [state.failed_at] if state.failed else []
        return min(times), rank not in blamed_by, rank

    is_open = any(ranks[rank].end is None for rank in blamed_by)
    not_failed = [rank for rank in blamed_by if not ranks[rank].failed]
    candidates = [rank for rank in failed if rank not in blamers] or not_failed or failed
    first = min(candidates, key=order)
    return first, is_open and not (ranks[first].failed and first in blamed_by)


def find_absent(ranks: Mapping[int, RankState]) -> Failure | None:
    """Return a rank that ended without an error while other ranks wait in a rendezvous for it.

    A rank counts as waiting only if no other rank has completed the same rendezvous. Otherwise it
    has completed the rendezvous as well, and its report may have been lost among many others.
    """
    joined = max((state.joined for state in ranks.values()), default=0)
    waiting = [
        rank
        for rank, state in ranks.items()
        if state.end is None and state.waits and state.joinings > joined
    ]
    absent = next((rank for rank, state in ranks.items() if state.end is not None), None)
    if not waiting or absent is None:
        return None
    wait = "waits" if len(waiting) == 1 else "wait"
    why = (
        "has ended with exit code 0 before it joined the others:"
        f" {list_ranks(waiting)} {wait} for it in ddl_core.init or ddl_rendezvous"
    )
    end = ranks[absent].end
    assert end is not None
    return Failure(absent, 0, FAILED, by_signal=False, lost=why, name=end.who)


def describe(rank: int, ranks: Mapping[int, RankState], name: str) -> Failure:
    """Return the failure of the root cause `rank`. `name` is the rank's name in messages."""
    state = ranks[rank]
    if state.end is not None and state.end.failed:
        return replace(state.end, said=_last_line(state))
    others = [other for other, e in ranks.items() if e.failed and e.blamed == rank]
    end = ranks[others[0]].end
    assert end is not None
    said = _last_line(ranks[others[0]])
    if state.raised and not state.end:  # it takes seconds until large programs exit
        lost = f"raised {_last_line(state)}"
    else:
        how = "has ended with exit code 0" if state.end else "is still running"
        lost = f"{how}, but {list_ranks(others)} lost it" + (f": {said}" if said else "")
    name = state.end.who if state.end else name
    return Failure(rank, 0, end.exit_code, by_signal=False, lost=lost, name=name)


def _last_line(state: RankState) -> str:
    """Return the last line of the traceback with which a Python program ended."""
    if state.raised:
        return state.raised.splitlines()[0]
    before, found = "", ""
    for line in state.tail:
        if before.startswith("  ") and _LAST_LINE.match(line):
            found = line
        before = line
    return found


def has_traceback(lines: Iterable[bytes]) -> bool:
    """Return True if the lines contain the frames of a Python traceback."""
    return any(line.startswith(b'  File "') for line in lines)


def list_ranks(ranks: Iterable[int]) -> str:
    """Return a text such as "rank 3" or "ranks 0, 2-3"."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"rank {text}" if text.isdecimal() else f"ranks {text}"
