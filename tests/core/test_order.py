# SPDX-License-Identifier: Apache-2.0
"""Ordered sums from Python have the same bits for every number of ranks and every owner."""

import gc
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from ranks import join, together, tree

from ddl_core import Comm, Endpoint, Order, add
from ddl_core.errors import InvalidArgument, Mismatch, Unsupported

pytestmark = pytest.mark.pure

Array = np.ndarray[Any, Any]
WORKERS = 6
COUNT = 1000
TYPES = ("float32", "float64", "int32", "complex64")


def own_parts(comm: Comm, order: Order, dtype: str = "float32") -> list[Array]:
    return [tree(first, size, COUNT, dtype) for first, size in order.parts(comm.rank)]


@pytest.fixture(scope="module", params=[1, 2, 3])
def comms(request: pytest.FixtureRequest) -> Any:
    endpoints = [Endpoint() for _ in range(request.param)]
    made = join(endpoints)
    yield made
    for closing in (*made, *endpoints):
        closing.close()


OWNERS = [[0] * WORKERS, [0, 0, 1, 1, 2, 2], [0, 0, 0, 1, 1, 1], [2, 0, 1, 0, 2, 1], [1] * WORKERS]


@pytest.mark.parametrize("owners", OWNERS)
@pytest.mark.parametrize("dtype", TYPES)
def test_bits_do_not_depend_on_ranks_and_owners(
    comms: Sequence[Comm], owners: list[int], dtype: str
) -> None:
    size = len(comms)

    def run(rank: int) -> Array:
        comm = comms[rank]
        order = comm.order([owner % size for owner in owners])
        parts = own_parts(comm, order, dtype)
        copies = [part.copy() for part in parts]
        result = comm.allreduce_ordered(order, parts, np.empty(COUNT, dtype))
        assert all(np.array_equal(a, b) for a, b in zip(parts, copies, strict=True))
        return result

    expected = tree(0, WORKERS, COUNT, dtype)
    for result in together(run, size):
        assert result.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16])
def test_half_types_are_rounded_once(comms: Sequence[Comm], dtype: Any) -> None:
    def run(rank: int) -> Array:
        order = comms[rank].order([v * len(comms) // WORKERS for v in range(WORKERS)])
        work = comms[rank].allreduce_ordered_async(
            order, own_parts(comms[rank], order), np.empty(COUNT, dtype), op="average"
        )
        return work.wait()

    with np.errstate(over="ignore"):
        expected = (tree(0, WORKERS, COUNT) / np.float32(WORKERS)).astype(dtype)
    for result in together(run, len(comms)):
        assert result.tobytes() == expected.tobytes()


def test_named_and_in_groups(comms: Sequence[Comm]) -> None:
    def run(rank: int) -> tuple[Array, Array]:
        comm = comms[rank]
        order = comm.order([v % len(comms) for v in range(WORKERS)])
        parts, named, grouped = own_parts(comm, order), np.empty(COUNT, "f"), np.empty(COUNT, "f")
        comm.allreduce_ordered(order, parts, named, name="gradients", timeout=30)
        group = comm.group()
        group.allreduce_ordered(order, parts, grouped)
        del order, parts  # the group keeps them
        gc.collect()
        group.submit()
        group.close()
        return named, grouped

    for results in together(run, len(comms)):
        assert all(result.tobytes() == tree(0, WORKERS, COUNT).tobytes() for result in results)


def test_different_owners_are_a_mismatch() -> None:
    endpoints = [Endpoint(), Endpoint()]
    pair = join(endpoints)

    def run(rank: int) -> None:
        order = pair[rank].order([0, 1] if rank else [1, 0])
        with pytest.raises(Mismatch):
            pair[rank].allreduce_ordered(order, own_parts(pair[rank], order), np.empty(COUNT, "f"))

    together(run, 2)
    for closing in (*pair, *endpoints):
        closing.close()


def test_parts() -> None:
    order = Order([0, 0, 0, 0, 1, 1, 0], 2)
    assert order.parts(0) == [(0, 4), (6, 1)]
    assert order.parts(1) == [(4, 2)]
    assert Order([1], 3).parts(0) == []
    assert repr(order) == "<ddl_core.Order of 7 workers on 2 ranks>"


def test_add_ignores_the_mode_of_the_thread() -> None:
    small = np.full(9, 1e-40, np.float32)
    assert np.array_equal(add(np.empty(9, np.float32), small, small), small * 2)
    total = small.copy()
    assert add(total, total, total) is total
    assert total[0] == small[0] * 2


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Order([0, 2], 2), InvalidArgument, r"owners\[1\] is 2"),
        (lambda: Order([], 2), InvalidArgument, "workers"),
        (lambda: Order([0] * 4097, 1), InvalidArgument, "4096"),
        (lambda: Order([0], 2).parts(2), InvalidArgument, "rank is 2"),
        (lambda: add(np.empty(2), np.empty(2), np.empty(3)), InvalidArgument, "right has 3"),
        (lambda: add(np.empty(2), np.empty(2), np.empty(2, "f")), InvalidArgument, "float64"),
        (lambda: add(*[np.empty(2, "f2")] * 3), Unsupported, "f16"),
    ],
)
def test_wrong_arguments(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_wrong_parts(alone: Comm) -> None:
    order, one, out = alone.order([0, 0]), np.ones(3, np.float32), np.empty(3, np.float32)
    for parts, recv, message in [
        ([], out, r"parts has 0 entries, but rank 0 has 1 parts: \[\(0, 2\)\]"),
        ([np.ones(2, "f")], out, r"parts\[0\] has 2 elements; must have 3"),
        ([np.ones(3)], out, "dtype float64; must be float32 for a float32 recv"),
        ([one], np.empty(3, np.float16)[:2], "3 elements; must have 2"),
        (
            [np.ones(3, "f2")],
            np.empty(3, "f2"),
            "dtype float16; must be float32 for a float16 recv",
        ),
        ([out], out, "overlap"),
    ]:
        with pytest.raises(InvalidArgument, match=message):
            alone.allreduce_ordered(order, parts, recv)
    with pytest.raises(InvalidArgument, match="is for 2 ranks, but the comm has 1"):
        alone.allreduce_ordered(Order([0, 1], 2), [one], out)
    with pytest.raises(Unsupported, match="op is max; must be DDL_SUM or DDL_AVERAGE"):
        alone.allreduce_ordered(order, [one], out, op="max")
