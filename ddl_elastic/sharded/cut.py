# SPDX-License-Identifier: Apache-2.0
"""The cut of arrays into ranges, and the ranks that hold each range. Pure.

An array consists of tensors. It is cut into one range for each rank. A range has `copies` + 1
holders, its owner and the next ranks in order, so no range is lost if `copies` ranks die.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

# A tensor is cut at multiples of this number of elements. Vectorized kernels compute the last
# elements of a tensor by other instructions, so a cut must not move them.
BLOCK = 64

Interval = tuple[int, int]  # the first element, and the first one after the end


class TensorPiece(NamedTuple):
    """A part of one tensor of an array; `begin` and `end` count the tensor's elements."""

    array: int
    tensor: int
    begin: int
    end: int


class StateLost(RuntimeError):
    """Error: all holders of a range have died."""


def cut(lengths: Sequence[int], ranks: int) -> list[int]:
    """Return the bounds of the ranks' ranges in an array of tensors with these lengths."""
    starts = [0, *accumulate(lengths)]
    bounds = list[int]()
    for rank in range(ranks):
        bound = starts[-1] * rank // ranks
        start = starts[bisect_right(starts, bound) - 1]
        bounds.append(start + (bound - start) // BLOCK * BLOCK)
    return [*bounds, starts[-1]]


def held_owners(rank: int, ranks: int, copies: int) -> list[int]:
    """Return the owners of the ranges that a rank holds, ascending: the rank itself and the ranks
    before it."""
    return sorted({(rank - distance) % ranks for distance in range(copies + 1)})


def held(bounds: Sequence[int], rank: int, copies: int) -> list[Interval]:
    """Return the intervals that a rank holds, ascending. Neighbouring ranges are one interval."""
    found = list[Interval]()
    for owner in held_owners(rank, len(bounds) - 1, copies):
        begin, end = bounds[owner], bounds[owner + 1]
        if found and found[-1][1] == begin:
            begin, _ = found.pop()
        found.append((begin, end))
    return found


def pieces(array: int, lengths: Sequence[int], interval: Interval) -> Iterator[TensorPiece]:
    """Yield the pieces of an array's interval, ascending."""
    starts = [0, *accumulate(lengths)]
    begin, end = interval
    number = bisect_right(starts, begin) - 1
    while begin < end:
        stop = min(end, starts[number + 1])
        if begin < stop:
            yield TensorPiece(array, number, begin - starts[number], stop - starts[number])
        begin, number = stop, number + 1


class Move(NamedTuple):
    """A piece that rank `source` sends to rank `target`. The two may be the same."""

    source: int
    target: int
    piece: TensorPiece


def plan_moves(
    lengths: Sequence[Sequence[int]],
    before: Sequence[int] | None,
    members: Sequence[int],
    keepers: Sequence[int] | None = None,
    lacking: Collection[int] = (),
    copies: int = 1,
) -> list[Move]:
    """Return the moves after which each rank of a new group holds its ranges.

    lengths  for each array, the lengths of its tensors
    before   the members whose ranks held the ranges, or None if each rank held everything
    members  the members of the new group, by rank
    keepers  the members among which the state is cut; None means all members
    lacking  members that have not received their ranges

    Raises StateLost if no member of the new group held a range.
    """
    rank_of = {member: rank for rank, member in enumerate(members)}
    moves = list[Move]()
    for array, each in enumerate(lengths):
        targets = [rank_of[member] for member in keepers or members]
        bounds = cut(each, len(targets))
        holders = {m: rank for m, rank in rank_of.items() if m not in lacking}
        sources = [] if before is None else list(_sources(each, before, holders, copies))
        for number, target in enumerate(targets):
            for begin, end in held(bounds, number, copies):
                if before is None:
                    moves += (Move(target, target, p) for p in pieces(array, each, (begin, end)))
                for (first, last), ranks in sources:
                    part = max(begin, first), min(end, last)
                    source = target if target in ranks else ranks[0]
                    if part[0] < part[1]:
                        moves += (Move(source, target, p) for p in pieces(array, each, part))
    return moves


def describe(holders: Sequence[int]) -> str:
    return " and ".join(f"member {each}" for each in holders)


def _sources(
    lengths: Sequence[int], before: Sequence[int], rank_of: dict[int, int], copies: int
) -> Iterator[tuple[Interval, list[int]]]:
    """Yield each range that is not empty with the ranks that hold it, the owner first."""
    bounds = cut(lengths, len(before))
    for number in range(len(before)):
        interval = bounds[number], bounds[number + 1]
        holders = dict.fromkeys(before[(number + n) % len(before)] for n in range(copies + 1))
        found = [rank_of[each] for each in holders if each in rank_of]
        if interval[0] == interval[1]:
            continue
        if not found:
            raise StateLost(
                f"all holders of some ranges of the state have died: {describe(list(holders))}"
            )
        yield interval, found
