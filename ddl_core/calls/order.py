# SPDX-License-Identifier: Apache-2.0
"""Ordered sums, whose bits depend neither on the number of ranks nor on the distribution of the
operands.

    order = comm.order(owners)                   # owners[v]: the rank that has logical worker v
    parts = [...]                                # one array for each of order.parts(comm.rank)
    comm.allreduce_ordered(order, parts, result, op="average")

ddl.h has the rule ("Ordered sums").
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex, TypeVar

from ddl_core.base._lib import check, ffi, lib
from ddl_core.base.config import WORKERS_MAX, integer
from ddl_core.calls import dtypes
from ddl_core.calls.arguments import Call, expect, expect_memory, op_value, pair, pointer
from ddl_core.calls.buffer import Buffer, as_buffer
from ddl_core.calls.dtypes import DType
from ddl_core.errors import InvalidArgument

Array = TypeVar("Array")

HALVES = ("float16", "bfloat16")  # their parts are float32


class Order:
    """The assignment of logical workers 0 to `workers` - 1 to ranks, which provide their operands.
    Created by `Comm.order`. It does not belong to a comm, and can be used with every comm of
    `ranks` ranks.

    owners[v] is the rank that has worker v. There are 1 to 4096 workers. A rank may have none.
    Raises InvalidArgument for other owners.
    """

    def __init__(self, owners: Sequence[SupportsIndex], ranks: int) -> None:
        given = [integer(r, f"owners[{v}]", 0, ranks - 1) for v, r in enumerate(owners)]
        slot = ffi.new("ddl_order **")
        check(lib.ddl_order_create(ffi.new("int[]", given), len(given), ranks, slot))
        self._handle = ffi.gc(slot[0], lib.ddl_order_destroy)
        self._parts: dict[int, list[tuple[int, int]]] = {}
        self.workers, self.ranks = len(given), ranks

    def parts(self, rank: SupportsIndex) -> list[tuple[int, int]]:
        """Return the parts that a rank provides to an ordered sum, ascending. A part (first, size)
        is the sum over the workers first to first + size - 1, in the order of the tree."""
        number = integer(rank, "rank", 0, self.ranks - 1)
        if number not in self._parts:
            firsts, sizes = ffi.new("int[]", self.workers), ffi.new("int[]", self.workers)
            count = ffi.new("int *")
            check(lib.ddl_order_parts(self._handle, number, firsts, sizes, self.workers, count))
            self._parts[number] = [(firsts[k], sizes[k]) for k in range(count[0])]
        return list(self._parts[number])

    def sums(self, rank: SupportsIndex, operands: Sequence[Any]) -> list[Any]:
        """Add the operands of a rank's workers along the tree, and return the parts for
        `allreduce_ordered` as NumPy arrays. operands[i] is the array of the rank's i-th worker;
        `operands` may be one array with the workers in its first dimension. Operands of 16-bit
        float types become float32. Raises InvalidArgument for another number of operands."""
        import numpy as np

        def wide(operand: Any) -> Any:
            array = np.ascontiguousarray(operand)
            return array.astype(np.float32) if array.dtype.name in HALVES else array

        def total(left: Any, right: Any) -> Any:
            return add(np.empty_like(left), left, right)

        return self.fold(rank, [wide(operand) for operand in operands], total)

    def fold(
        self, rank: SupportsIndex, operands: Sequence[Array], add: Callable[[Array, Array], Array]
    ) -> list[Array]:
        """Do the same as `sums`, with the adapter's own arrays. add(left, right) returns a new
        array with the bits of ddl_add."""
        parts = self.parts(rank)
        own = sum(size for _, size in parts)
        if len(operands) != own:
            raise InvalidArgument(
                f"operands has {len(operands)} entries, but rank {rank} has {own} workers"
            )

        def tree(at: int, size: int) -> Array:
            if size == 1:
                return operands[at]
            half = 1 << (size - 1).bit_length() - 1
            return add(tree(at, half), tree(at + half, size - half))

        ends = itertools.accumulate((size for _, size in parts), initial=0)
        return [tree(at, size) for at, (_, size) in zip(ends, parts, strict=False)]

    def __repr__(self) -> str:
        return f"<ddl_core.Order of {self.workers} workers on {self.ranks} ranks>"


def contiguous(workers: SupportsIndex, ranks: int, argument: str = "workers") -> Order:
    """Return the order with contiguous workers: the first worker of rank r is r * workers / ranks,
    rounded down. Equal calls return the same object, so that the library keeps its plans. Raises
    InvalidArgument, which names the argument."""
    return _contiguous(integer(workers, argument, 1, WORKERS_MAX), ranks, os.getpid())


@functools.lru_cache
def _contiguous(workers: int, ranks: int, process: int) -> Order:
    """Return the cached order of this process: a forked child cannot use its parent's."""
    return Order([((v + 1) * ranks - 1) // workers for v in range(workers)], ranks)


def allreduce_ordered(
    order: Order, parts: Sequence[Any], recv: Array, op: str, rank: int, size: int
) -> Call[Array]:
    """Return the call of Operations.allreduce_ordered."""
    target = as_buffer(recv, "recv", write=True)
    sources, pointers = _parts(order, parts, target, target.count, rank, size)
    arguments = (pointers, pointer(target), target.count, target.dtype.value, op_value(op))
    return Call(
        lib.ddl_allreduce_ordered,
        (order._handle, *arguments),
        recv,
        (*sources, target),
        keep=(order, pointers),
    )


def reduce_scatter_ordered(
    order: Order,
    parts: Sequence[Any],
    recv: Array,
    counts: Sequence[SupportsIndex] | None,
    op: str,
    rank: int,
    size: int,
) -> Call[Array]:
    """Return the call of Operations.reduce_scatter_ordered."""
    target = as_buffer(recv, "recv", write=True)
    own, total = target.count, target.count * size
    if counts is not None:
        numbers = [integer(n, f"counts[{r}]", 0, 2**48 - 1) for r, n in enumerate(counts)]
        if len(numbers) != size:
            raise InvalidArgument(
                f"counts has {len(numbers)} entries; must have {size}, one for each rank"
            )
        own, total = numbers[rank], sum(numbers)
        expect("recv", target.count, own, "like counts[rank]")
    sources, pointers = _parts(order, parts, target, total, rank, size)
    lengths = own if counts is None else ffi.new("int64_t[]", numbers)
    arguments = (pointers, pointer(target), lengths, target.dtype.value, op_value(op))
    return Call(
        lib.ddl_reduce_scatter_ordered if counts is None else lib.ddl_reduce_scatterv_ordered,
        (order._handle, *arguments),
        recv,
        (*sources, target),
        keep=(order, pointers, lengths),
    )


def _parts(
    order: Order, parts: Sequence[Any], target: Buffer, count: int, rank: int, size: int
) -> tuple[list[Buffer], Any]:
    """Return the buffers of a rank's parts, of `count` elements each, and their addresses."""
    if order.ranks != size:
        raise InvalidArgument(f"order is for {order.ranks} ranks, but the comm has {size}")
    own = order.parts(rank)
    if len(parts) != len(own):
        raise InvalidArgument(
            f"parts has {len(parts)} entries, but rank {rank} has {len(own)} parts: {own}"
        )
    dtype = target.dtype
    wide = dtypes.from_name("float32", "parts") if dtype.name in HALVES else dtype
    sources = [as_buffer(part, f"parts[{k}]") for k, part in enumerate(parts)]
    for k, source in enumerate(sources):
        if source.dtype is not wide:
            raise InvalidArgument(
                f"parts[{k}] has dtype {source.dtype.name}; must be {wide.name} for a"
                f" {dtype.name} recv"
            )
        expect(f"parts[{k}]", source.count, count, "like recv")
        expect_memory(f"parts[{k}]", source, "recv", target)
    return sources, ffi.new("void *[]", [pointer(source) for source in sources])


def add(dst: Array, left: Any, right: Any) -> Array:
    """Set dst[i] = left[i] + right[i], with the bits of ordered sums. Return dst.

    dst may be left or right. All have the same count and dtype: integers, float32, float64 or
    complex. Use it to build parts from the operands of single workers. Raises InvalidArgument, and
    Unsupported for other dtypes.
    """
    first, target = pair(left, dst)
    second, _ = pair(right, dst)
    if target.contents is not None:
        raise InvalidArgument("dst is on a GPU, but add takes only arrays in host memory")
    expect("left", first.count, target.count, "like dst")
    expect("right", second.count, target.count, "like dst")
    pointers = pointer(target), pointer(first), pointer(second)
    check(lib.ddl_add(*pointers, target.count, target.dtype.value))
    return dst


def add_at(dst: int, left: int, right: int, count: int, dtype: DType) -> None:
    """Do the same as `add` for `count` elements at these addresses, for adapters that know the
    memory."""
    check(lib.ddl_add(_cast(dst), _cast(left), _cast(right), count, dtype.value))


def _cast(address: int) -> Any:
    return ffi.cast("void *", address)
