# SPDX-License-Identifier: Apache-2.0
"""The assignment of logical workers to ranks, and the useful numbers of ranks. Pure.

Each rank gets one contiguous range, and so does each host. A range consists of parts, which are
nodes of the order's tree. A rank with F parts sends F times as many bytes as a rank with one part.
The ranges are found by dynamic programming over the cuts between them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ddl_elastic.shares.order import parts, tree_size

SLACK = 0.125  # fraction by which a step may exceed the time of even shares, to have fewer parts
TIMES = 16  # number of step times to try between the shortest and the longest allowed one

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Assignment:
    """The logical workers of each rank. `ranges[rank]` may be empty."""

    workers: int
    ranges: tuple[range, ...]
    time: float  # of a step: the maximum over the ranks of (number of shares / speed)
    parts: tuple[int, ...]  # by rank: the number of tree nodes that it adds to an ordered sum

    @property
    def owners(self) -> tuple[int, ...]:
        """The rank of each logical worker, as Comm.order expects it."""
        rank_of = {worker: rank for rank, owned in enumerate(self.ranges) for worker in owned}
        return tuple(rank_of[worker] for worker in range(self.workers))

    @property
    def wire_factor(self) -> float:
        """The mean number of bytes that a rank sends in an ordered sum, relative to a plain sum."""
        return (sum(self.parts) / len(self.parts) + 1) / 2


def legal_sizes(workers: int) -> tuple[int, ...]:
    """Return the useful numbers of equally fast ranks: with one rank fewer, some rank would have to
    compute more. For 16 logical workers they are 1, 2, 3, 4, 6, 8 and 16."""
    tree_size(workers)  # check the number
    loads = {size: -(-workers // size) for size in range(1, workers + 1)}
    return tuple(size for size in loads if loads[size] < loads.get(size - 1, workers + 1))


def assign(
    workers: int,
    speeds: Sequence[float],
    hosts: Sequence[str] | None = None,
    previous: Sequence[int | None] | None = None,
) -> Assignment:
    """Assign logical workers to the ranks 0 to len(speeds) - 1.

    speeds   by rank: shares per unit of time, in any unit
    hosts    by rank: the name of its host; None means that all are on one host
    previous by worker: the rank that owned it so far, or None if that rank has left

    A step takes at most 12.5 % longer than with even shares, and less time than with the best
    assignment without the slowest rank. Among these assignments, the result has the fewest parts of
    hosts, then the fewest parts of ranks, then the shortest step, then the fewest moved workers. A
    slow rank may get no workers. Equal arguments give equal results. Raises ValueError if `workers`
    is out of range, a speed is not positive, or a list has the wrong length.
    """
    tree_size(workers)
    places = list(hosts) if hosts is not None else [""] * len(speeds)
    owners: list[int | None] = list(previous) if previous is not None else [None] * workers
    if not speeds or not all(math.isfinite(speed) and speed > 0 for speed in speeds):
        raise ValueError(f"speeds are {list(speeds)}; at least one, and each above 0")
    if len(places) != len(speeds):
        raise ValueError(f"{len(places)} hosts for {len(speeds)} ranks; one for each is needed")
    if len(owners) != workers:
        raise ValueError(f"{len(owners)} previous owners; one for each of {workers} workers")
    groups = _in_order(places, owners)
    _, cuts = min(_solutions(workers, speeds, groups, owners), key=lambda found: found[0])
    order = [rank for group in groups for rank in group]
    ranges = {rank: range(cuts[i], cuts[i + 1]) for i, rank in enumerate(order)}
    return Assignment(
        workers,
        tuple(ranges[rank] for rank in range(len(speeds))),
        max(len(ranges[rank]) / speed for rank, speed in enumerate(speeds)),
        tuple(len(parts(owned.start, owned.stop, workers)) for _, owned in sorted(ranges.items())),
    )


def _in_order(hosts: list[str], previous: list[int | None]) -> list[list[int]]:
    """Return the ranks by host. Previous owners come first, in the order of their workers."""
    first = {rank: worker for worker, rank in reversed(list(enumerate(previous)))}
    groups: dict[str, list[int]] = {}
    for rank in sorted(range(len(hosts)), key=lambda rank: (first.get(rank, len(previous)), rank)):
        groups.setdefault(hosts[rank], []).append(rank)
    return list(groups.values())


def _shortest_time(workers: int, speeds: Sequence[float]) -> float:
    """Return the minimum time in which these ranks compute all shares, or infinity without
    ranks."""
    ends = [(1 / speed, 1, speed) for speed in speeds]  # the time of each rank's next share
    heapq.heapify(ends)
    time = 0.0 if ends else math.inf
    for _ in range(workers if ends else 0):
        time, count, speed = ends[0]
        heapq.heapreplace(ends, ((count + 1) / speed, count + 1, speed))
    return time


def _times(workers: int, speeds: Sequence[float]) -> list[float]:
    """Return the step times to try, ascending: the shortest, and longer ones within the limits."""
    shortest = _shortest_time(workers, speeds)
    limit = workers / sum(speeds) * (1 + SLACK)
    without = _shortest_time(workers, sorted(speeds)[1:])
    longer = {
        count / speed
        for speed in set(speeds)
        for count in range(math.ceil(shortest * speed), math.floor(limit * speed) + 1)
        if shortest < count / speed < without
    }
    ascending = [shortest, *sorted(longer)]
    step = -(-len(ascending) // TIMES)
    return sorted({*ascending[::step], ascending[-1]})


def _most(time: float, speed: float, workers: int) -> int:
    """Return the number of workers whose shares a rank computes in this time."""
    count = min(workers, int(time * speed) + 1)
    while count / speed > time:
        count -= 1
    return count


def _solutions(
    workers: int, speeds: Sequence[float], groups: list[list[int]], previous: list[int | None]
) -> Iterator[tuple[tuple[int, int, float, int], list[int]]]:
    """Yield the cost and the cuts between the ranks for each step time to try."""
    table = _Parts(workers)
    owner = np.array([-1 if rank is None else rank for rank in previous])
    for time in _times(workers, speeds):
        most = [_most(time, speed, workers) for speed in speeds]
        host_parts, _, host_cuts = table.cut(
            0, workers, [sum(most[r] for r in group) for group in groups], owner, groups
        )
        rank_parts, moves, cuts = 0, 0, [0]
        for group, first, last in zip(groups, host_cuts, host_cuts[1:], strict=False):
            added, moved, inner = table.cut(
                first, last, [most[rank] for rank in group], owner, [[rank] for rank in group]
            )
            rank_parts, moves, cuts = rank_parts + added, moves + moved, cuts + inner[1:]
        yield (host_parts, rank_parts, time, moves), cuts


class _Parts:
    """The number of parts of ranges of workers, and a search for the cuts with the fewest parts."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.size = tree_size(workers)
        self.bits = np.array([bin(n).count("1") for n in range(2 * self.size + 1)])
        self.lengths = np.array([n.bit_length() for n in range(2 * self.size + 1)])

    def count(self, first: Numbers, last: Numbers) -> Numbers:
        """Return the number of parts of each range. A range is split in the middle of the
        smallest tree node that contains it. It has one part for each 1 bit in the lengths of the
        two halves."""
        end = np.where(last == self.workers, self.size, last)
        shift = np.maximum(self.lengths[first ^ end] - 1, 0)
        middle = (end >> shift) << shift
        found: Numbers = self.bits[middle - first] + self.bits[end - middle]
        return np.where(first == last, 0, found)

    def cut(
        self, first: int, last: int, most: list[int], owner: Numbers, members: list[list[int]]
    ) -> tuple[int, int, list[int]]:
        """Cut first <= v < last into ranges of at most most[i] workers. Minimize the parts, then
        the moves: workers whose owner is not in members[i]. Return parts, moves, cuts.

        best[i][c] is the minimum cost of the first i ranges if they end at first + c.
        """
        length, scale = last - first, self.workers + 1  # cost: parts * scale + moves
        unreachable = scale * scale * len(most)
        ends = np.arange(length + 1)
        best = np.full(length + 1, unreachable)
        best[0] = 0
        chosen = []  # for each range: its length, indexed by its end
        low, high = 0, 0
        left = sum(most)
        for limit, ranks in zip(most, members, strict=True):
            left -= limit
            low_next, high_next = max(low, length - left), min(length, high + limit)
            kept = np.concatenate(([0], np.cumsum(np.isin(owner[first:last], ranks))))
            following = np.full(length + 1, unreachable)
            taken = np.zeros(length + 1, dtype=np.int64)
            for n in range(min(limit, high_next - low) + 1):
                to = ends[max(low + n, low_next) : min(high + n, high_next) + 1]
                if not to.size:
                    continue
                begin = to - n
                cost = best[begin] + scale * self.count(first + begin, first + to)
                cost += n - (kept[to] - kept[begin])
                better = cost < following[to]
                following[to[better]] = cost[better]
                taken[to[better]] = n
            chosen.append(taken)
            best, low, high = following, low_next, high_next
        cuts = [last]
        for taken in reversed(chosen):
            cuts.append(cuts[-1] - int(taken[cuts[-1] - first]))
        counted, moves = divmod(int(best[length]), scale)
        return counted, moves, cuts[::-1]
