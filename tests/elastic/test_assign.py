# SPDX-License-Identifier: Apache-2.0
"""Logical workers are assigned to ranks as ordered sums require."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddl_elastic.shares.assign import SLACK, Assignment, assign, legal_sizes
from ddl_elastic.shares.order import parts

pytestmark = pytest.mark.pure


def all_cuts(workers: int, ranks: int) -> list[list[int]]:
    if ranks == 1:
        return [[0, workers]]
    return [
        [*cuts[:-1], cut, workers]
        for cut in range(workers + 1)
        for cuts in all_cuts(cut, ranks - 1)
    ]


def cost(workers: int, cuts: list[int]) -> int:
    return sum(len(parts(a, b, workers)) for a, b in pairwise(cuts))


@given(workers=st.integers(1, 300), data=st.data())
def test_parts_are_the_largest_nodes(workers: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, workers))
    last = data.draw(st.integers(first, workers))
    found = parts(first, last, workers)
    sizes = [1 << k for k in range(workers.bit_length() + 1)]
    nodes = {
        (node, min(node + size, workers)) for size in sizes for node in range(0, workers, size)
    }
    inside = {(a, b) for a, b in nodes if first <= a and b <= last}
    largest = {
        (a, b)
        for a, b in inside
        if not any((c, d) != (a, b) and c <= a and b <= d for c, d in inside)
    }
    assert [(node, node + count) for node, count in found] == sorted(largest)


def test_legal_sizes() -> None:
    assert legal_sizes(1) == (1,)
    assert legal_sizes(16) == (1, 2, 3, 4, 6, 8, 16)
    assert legal_sizes(12) == (1, 2, 3, 4, 6, 12)
    for workers in (*range(1, 33), 48, 64, 100, 128):
        loads = [max(map(len, assign(workers, [1] * n).ranges)) for n in legal_sizes(workers)]
        assert all(after < before for before, after in pairwise(loads)), workers


@pytest.mark.parametrize(
    ("workers", "ranks", "factor"),
    [
        *((16, n, 1.0) for n in (1, 2, 4, 8, 16)),
        *((16, n, 4 / 3) for n in (3, 6)),
        *((64, n, 4 / 3) for n in (3, 6)),
        (64, 7, 10 / 7),
        *((64, n, 1.7) for n in (5, 10)),
    ],
)
def test_wire_factors_of_the_contract(workers: int, ranks: int, factor: float) -> None:
    assert assign(workers, [1.0] * ranks).wire_factor == pytest.approx(factor)


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 16])
@pytest.mark.parametrize("speeds", [[1], [1, 1], [1, 2], [1, 1, 1], [3, 1, 2], [2, 2, 1, 1]])
def test_no_assignment_is_better(workers: int, speeds: list[float]) -> None:
    found = assign(workers, speeds)
    times = {
        tuple(cuts): max((b - a) / s for (a, b), s in zip(pairwise(cuts), speeds, strict=True))
        for cuts in all_cuts(workers, len(speeds))
    }
    shortest = min(times.values())
    limit = max(shortest, workers / sum(speeds) * (1 + SLACK))
    assert shortest <= found.time <= limit
    no_longer = [cuts for cuts, time in times.items() if time <= found.time]
    assert sum(found.parts) == min(cost(workers, list(cuts)) for cuts in no_longer)


@given(
    workers=st.integers(1, 70),
    speeds=st.lists(st.floats(0.1, 10), min_size=1, max_size=9),
    data=st.data(),
)
def test_every_worker_has_one_owner_and_hosts_are_contiguous(
    workers: int, speeds: list[float], data: st.DataObject
) -> None:
    ranks = len(speeds)
    hosts = data.draw(st.lists(st.sampled_from("abc"), min_size=ranks, max_size=ranks))
    owner = st.one_of(st.none(), st.integers(0, ranks - 1))
    previous = data.draw(st.lists(owner, min_size=workers, max_size=workers))
    found = assign(workers, speeds, hosts, previous)
    assert len(found.owners) == workers
    assert sum(map(len, found.ranges)) == workers
    assert found.time == max(len(r) / s for r, s in zip(found.ranges, speeds, strict=True))
    in_order = [hosts[rank] for rank in found.owners]
    changes = [
        host for host, before in zip(in_order, [None, *in_order], strict=False) if host != before
    ]
    assert len(changes) == len(set(changes))
    assert found == assign(workers, speeds, hosts, previous)


def moves(previous: tuple[int | None, ...], found: Assignment) -> int:
    return sum(a != b for a, b in zip(previous, found.owners, strict=True))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 8])
def test_nothing_moves_without_a_reason(ranks: int) -> None:
    owners = assign(16, [1.0] * ranks).owners
    shuffled = tuple((rank * 5 + 1) % ranks if ranks % 5 else rank for rank in owners)
    for previous in (owners, shuffled):
        assert moves(previous, assign(16, [1.0] * ranks, previous=previous)) == 0


def test_a_death_moves_little() -> None:
    """8 ranks have 2 workers each. Rank 3 dies, so some of the remaining 7 must compute 3."""
    previous = tuple(None if v // 2 == 3 else v // 2 - (v // 2 > 3) for v in range(16))
    found = assign(16, [1.0] * 7, previous=previous)
    assert found.time == 3
    assert moves(previous, found) <= 6


def test_a_slow_rank_gets_less_or_none() -> None:
    assert list(map(len, assign(16, [1, 1, 1, 0.5]).ranges)) == [4, 5, 5, 2]
    assert assign(16, [1, 1, 0.01]).ranges[2] == range(16, 16)


def test_more_ranks_than_workers() -> None:
    assert sorted(map(len, assign(2, [1] * 5).ranges)) == [0, 0, 0, 1, 1]


def test_hosts_come_before_ranks() -> None:
    """Two hosts of 3 ranks: each host has one part of the 24 workers, whatever the speeds of its
    ranks."""
    found = assign(48, [1.0] * 6, ["a", "b"] * 3)
    of_host = [{v // 24 for rank in (h, h + 2, h + 4) for v in found.ranges[rank]} for h in (0, 1)]
    assert of_host == [{0}, {1}] or len(parts(0, 24, 48)) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, [1.0]), "workers is 0; it must be 1 to 4096"),
        ((4097, [1.0]), "workers is 4097"),
        ((4, []), r"speeds are \[\]"),
        ((4, [1.0, 0.0]), "each above 0"),
        ((4, [math.nan]), "each above 0"),
        ((4, [1.0, 1.0], ["a"]), "1 hosts for 2 ranks"),
        ((4, [1.0], None, [0]), "1 previous owners; one for each of 4 workers"),
    ],
)
def test_wrong_arguments(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        assign(*arguments)


def test_a_range_outside() -> None:
    with pytest.raises(ValueError, match="the range 3 to 9 is not within 0 to 8"):
        parts(3, 9, 8)
