"""Which rank a job has failed by: the one that the others' errors blame. Pure.

When one rank fails, the others fail because of its loss, and often end before it: a process that
raises takes its time to end. So what counts is not who has ended first. A rank whose error names
another rank is a consequence; of the rest, the one that something was heard of first is the cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ddl_launch.errors import FAILED
from ddl_launch.failure import Failure

# An exit code alone tells nothing of when things went wrong: it counts as this much later, in
# seconds, than a signal that killed, a lost host, or an exception that was reported.
_EXIT_TAKES = 0.3
# Of libddl's messages about a member that is gone; a comm's names are those of the world in a job
# that has only one comm.
_LOSS = re.compile(r"rank (\d+) on [^\s:]+ (?:is dead|is lost|left the comm|hung up)")
_LAST_LINE = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:: .*)?$")


@dataclass
class Evidence:
    """What is known of one rank.

    end      how it ended; None while it runs
    at       when that was noticed, in seconds
    raised   the exception that it reported, and `told_at` when; "" for none
    tail     its last lines of output
    waits    whether it waits in the job's rendezvous; `joinings` and `joined`: how often it has
             begun to, and has met the others there
    """

    end: Failure | None = None
    at: float = 0.0
    raised: str = ""
    told_at: float = 0.0
    tail: Iterable[str] = ()
    waits: bool = False
    joinings: int = 0
    joined: int = 0

    @property
    def failed(self) -> bool:
        return self.end is not None and self.end.failed

    @property
    def blamed(self) -> int | None:
        """The rank whose loss it fails by, as it says."""
        lines = [self.raised] if self.raised else self.tail
        found = [int(rank) for line in lines for rank in _LOSS.findall(line)]
        return found[-1] if found else None

    @property
    def first_heard(self) -> float:
        """When its failure was first heard of."""
        if self.raised:
            return min(self.told_at, self.at)
        certain = self.end is not None and (self.end.by_signal or self.end.lost)
        return self.at + (0.0 if certain else _EXIT_TAKES)


def find(ranks: Mapping[int, Evidence]) -> tuple[int, bool]:
    """The culprit, some rank having failed, and whether a rank that is still running is blamed
    instead, or as well, whose end may tell more."""
    failed = [rank for rank, evidence in ranks.items() if evidence.failed]
    blamed_by: dict[int, list[int]] = {}
    for rank in failed:
        whom = ranks[rank].blamed
        if whom is not None and whom != rank and whom in ranks:
            blamed_by.setdefault(whom, []).append(rank)
    blamers = {rank for others in blamed_by.values() for rank in others}

    def heard(rank: int) -> tuple[float, bool, int]:
        evidence = ranks[rank]
        times = [ranks[other].first_heard for other in blamed_by.get(rank, [])]
        times += [evidence.first_heard] if evidence.failed else []
        return min(times), rank not in blamed_by, rank

    open_question = any(ranks[rank].end is None for rank in blamed_by)
    innocent = [rank for rank in blamed_by if not ranks[rank].failed]
    suspects = [rank for rank in failed if rank not in blamers] or innocent or failed
    first = min(suspects, key=heard)
    return first, open_question and not (ranks[first].failed and first in blamed_by)


def find_absent(ranks: Mapping[int, Evidence]) -> Failure | None:
    """Of a job in which nothing has failed: a rank that has ended without coming to a rendezvous in
    which others wait."""
    for rank, evidence in ranks.items():
        if evidence.end is not None:
            waiting = [
                other
                for other, e in ranks.items()
                if e.end is None and e.waits and e.joinings > evidence.joined
            ]
            if waiting:
                wait = "waits" if len(waiting) == 1 else "wait"
                why = (
                    "has ended with exit code 0 before it joined the others:"
                    f" {list_ranks(waiting)} {wait} for it in ddl_core.init or ddl_rendezvous"
                )
                return Failure(rank, 0, FAILED, by_signal=False, lost=why, name=evidence.end.who)
    return None


def accuse(rank: int, ranks: Mapping[int, Evidence], name: str) -> Failure:
    """The failure of `rank`, which `find` has found; `name` is what messages call it."""
    evidence = ranks[rank]
    if evidence.end is not None and evidence.end.failed:
        return replace(evidence.end, said=_last_line(evidence))
    others = [other for other, e in ranks.items() if e.failed and e.blamed == rank]
    end = ranks[others[0]].end
    assert end is not None
    said = _last_line(ranks[others[0]])
    state = "has ended with exit code 0" if evidence.end else "is still running"
    lost = f"{state}, but {list_ranks(others)} lost it" + (f": {said}" if said else "")
    name = evidence.end.who if evidence.end else name
    return Failure(rank, 0, end.exit_code, by_signal=False, lost=lost, name=name)


def _last_line(evidence: Evidence) -> str:
    """The exception by which a Python program has ended, as the last line of its traceback."""
    if evidence.raised:
        return evidence.raised.splitlines()[0]
    before, found = "", ""
    for line in evidence.tail:
        if before.startswith("  ") and _LAST_LINE.match(line):
            found = line
        before = line
    return found


def list_ranks(ranks: Iterable[int]) -> str:
    """As "rank 3" or "ranks 0, 2-3"."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"rank {text}" if text.isdecimal() else f"ranks {text}"
