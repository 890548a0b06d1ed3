# SPDX-License-Identifier: Apache-2.0
"""The cut of a sharded state into ranges, and the moves to other ranks."""

import math
import random

import numpy as np
import pytest

from ddl_elastic.sharded.cut import BLOCK, StateLost, cut, held, pieces, plan_moves
from ddl_elastic.sharded.norms import CHUNK, find_factor, find_norm, sum_squares

LENGTHS = [[1000, 7, 64 * 9, 1], [130], [5, 5]]


def test_ranges_cover_the_array_and_cut_tensors_at_blocks() -> None:
    chance = random.Random(1)
    for _ in range(300):
        lengths = [chance.choice([1, 63, 64, 100, 5000]) for _ in range(chance.randint(1, 9))]
        ranks = chance.randint(1, 12)
        bounds = cut(lengths, ranks)
        assert bounds[0] == 0 and bounds[-1] == sum(lengths) and bounds == sorted(bounds)
        found = [
            piece
            for rank in range(ranks)
            for piece in pieces(0, lengths, (bounds[rank], bounds[rank + 1]))
        ]
        assert all(piece.begin % BLOCK == 0 for piece in found)
        assert sum(piece.end - piece.begin for piece in found) == sum(lengths)


@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_the_owner_and_the_next_ranks_hold_a_range(ranks: int, copies: int) -> None:
    bounds = cut([6400], ranks)
    for number in range(ranks):
        holders = [
            rank
            for rank in range(ranks)
            if any(
                begin <= bounds[number] and bounds[number + 1] <= end
                for begin, end in held(bounds, rank, copies)
            )
        ]
        assert holders == sorted({(number + n) % ranks for n in range(copies + 1)})


def state_after(before: list[int] | None, members: list[int], copies: int = 1) -> None:
    """Check that the moves give each member all that it holds, from members that held it."""

    def contents(group: list[int] | None, member: int) -> set[tuple[int, int]]:
        found = set()
        for array, lengths in enumerate(LENGTHS):
            if group is None:
                found |= {(array, i) for i in range(sum(lengths))}
            else:
                for begin, end in held(cut(lengths, len(group)), group.index(member), copies):
                    found |= {(array, i) for i in range(begin, end)}
        return found

    got: dict[int, set[tuple[int, int]]] = {member: set() for member in members}
    for source, target, piece in plan_moves(LENGTHS, before, members, copies=copies):
        start = sum(LENGTHS[piece.array][: piece.tensor])
        part = {(piece.array, start + i) for i in range(piece.begin, piece.end)}
        assert part <= contents(before, members[source])
        assert not part & got[members[target]]
        got[members[target]] |= part
    assert got == {member: contents(members, member) for member in members}


@pytest.mark.parametrize(
    ("before", "members"),
    [
        (None, [4, 5, 6]),
        ([0, 1, 2, 3], [0, 2, 3]),
        ([0, 1, 2, 3, 4], [1, 2, 4]),
        ([0, 1], [1]),
        ([0, 1, 2], [0, 2]),
    ],
)
def test_moves_after_deaths_complete_the_new_holders(
    before: list[int] | None, members: list[int]
) -> None:
    state_after(before, members)


@pytest.mark.parametrize(
    ("before", "members"),
    [
        ([0, 1, 2, 3], [0, 3]),
        ([0, 1, 2, 3], [1, 2]),
        ([0, 1, 2, 3, 4, 5], [1, 4]),
        ([0, 1, 2], [1]),
    ],
)
def test_two_copies_survive_the_deaths_of_neighbours(before: list[int], members: list[int]) -> None:
    state_after(before, members, copies=2)


def test_deaths_of_all_holders_of_two_copies_lose_the_state() -> None:
    text = "have died: member 3 and member 4 and member 0"
    with pytest.raises(StateLost, match=text):
        plan_moves(LENGTHS, [0, 1, 2, 3, 4], [1, 2], copies=2)


def test_deaths_of_both_holders_lose_the_state() -> None:
    with pytest.raises(StateLost, match="have died: member 2 and member 3"):
        plan_moves(LENGTHS, [0, 1, 2, 3], [0, 1])
    with pytest.raises(StateLost, match="have died: member 3 and member 0"):
        plan_moves(LENGTHS, [0, 1, 2, 3], [1, 2])


@pytest.mark.parametrize("length", [1, 63, 64, 1000, CHUNK + 100])
def test_sums_of_squares_do_not_depend_on_the_cut(length: int) -> None:
    values = np.random.default_rng(1).standard_normal(length).astype(np.float32)
    whole = sum_squares(values)
    for ranks in (2, 3, 5):
        bounds = cut([length], ranks)
        parts = [sum_squares(values[bounds[r] : bounds[r + 1]]) for r in range(ranks)]
        assert np.concatenate(parts).tobytes() == whole.tobytes()
    expected = math.sqrt(math.fsum(float(each) ** 2 for each in values))
    assert math.isclose(find_norm([whole, np.zeros(3)]), expected, rel_tol=1e-14)


def test_factor_clips_only_larger_norms() -> None:
    assert find_factor(0.5, 1.0) == 1.0 and find_factor(0.0, 1.0) == 1.0
    assert math.isclose(find_factor(4.0, 1.0), 0.25, rel_tol=1e-6)
    assert math.isnan(find_factor(math.nan, 1.0)) and find_factor(math.inf, 1.0) == 0.0
