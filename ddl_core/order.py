# SPDX-License-Identifier: Apache-2.0
"""Ordered sums, whose bits depend neither on the number of ranks nor on who computed what.

    order = comm.order(owners)                   # owners[v]: the rank that has logical worker v
    parts = [...]                                # one array for each of order.parts(comm.rank)
    comm.allreduce_ordered(order, parts, result, op="average")

ddl.h has the rule ("Ordered sums").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex, TypeVar

from ddl_core import dtypes
from ddl_core._lib import check, ffi, lib
from ddl_core.arguments import Call, expect, expect_memory, op_value, pair, pointer
from ddl_core.buffer import as_buffer
from ddl_core.config import integer
from ddl_core.dtypes import DType
from ddl_core.errors import InvalidArgument

Array = TypeVar("Array")

_HALVES = ("float16", "bfloat16")  # their parts are float32


class Order:
    """The assignment of logical workers 0 to `workers` - 1 to ranks, which provide their operands.
    Created by `Comm.order`. Belongs to no comm, and fits every comm of `ranks` ranks.

    owners[v] is the rank that has worker v. There are 1 to 4096 workers. A rank may have none.
    Raises InvalidArgument.
    """

    def __init__(self, owners: Sequence[SupportsIndex], ranks: int) -> None:
        given = [integer(r, f"owners[{v}]", 0, ranks - 1) for v, r in enumerate(owners)]
        slot = ffi.new("ddl_order **")
        check(lib.ddl_order_create(ffi.new("int[]", given), len(given), ranks, slot))
        self._handle = ffi.gc(slot[0], lib.ddl_order_destroy)
        self._parts: dict[int, list[tuple[int, int]]] = {}
        self.workers, self.ranks = len(given), ranks

    def parts(self, rank: SupportsIndex) -> list[tuple[int, int]]:
        """Return the parts that a rank provides to an ordered sum, ascending. (first, size) is the
        sum over the workers first to first + size - 1, added up by the order's tree over them."""
        number = integer(rank, "rank", 0, self.ranks - 1)
        if number not in self._parts:
            firsts, sizes = ffi.new("int[]", self.workers), ffi.new("int[]", self.workers)
            count = ffi.new("int *")
            check(lib.ddl_order_parts(self._handle, number, firsts, sizes, self.workers, count))
            self._parts[number] = [(firsts[k], sizes[k]) for k in range(count[0])]
        return list(self._parts[number])

    def __repr__(self) -> str:
        return f"<ddl_core.Order of {self.workers} workers on {self.ranks} ranks>"


def allreduce_ordered(
    order: Order, parts: Sequence[Any], recv: Array, op: str, rank: int, size: int
) -> Call[Array]:
    """Return the call of Operations.allreduce_ordered."""
    if order.ranks != size:
        raise InvalidArgument(f"order: is for {order.ranks} ranks, but the comm has {size}")
    target = as_buffer(recv, "recv", write=True)
    own = order.parts(rank)
    if len(parts) != len(own):
        raise InvalidArgument(f"parts: got {len(parts)}, but rank {rank} has {len(own)}: {own}")
    dtype = target.dtype
    wide = dtypes.from_name("float32", "parts") if dtype.name in _HALVES else dtype
    sources = [as_buffer(part, f"parts[{k}]") for k, part in enumerate(parts)]
    for k, source in enumerate(sources):
        if source.dtype is not wide:
            raise InvalidArgument(
                f"parts[{k}]: dtype {source.dtype.name}, but a {dtype.name} recv needs {wide.name}"
            )
        expect(f"parts[{k}]", source.count, target.count, "like recv")
        expect_memory(f"parts[{k}]", source, "recv", target)
    pointers = ffi.new("void *[]", [pointer(source) for source in sources])
    arguments = (pointers, pointer(target), target.count, dtype.value, op_value(op))
    return Call(
        lib.ddl_allreduce_ordered,
        (order._handle, *arguments),
        recv,
        (*sources, target),
        keep=(order, pointers),
    )


def add(dst: Array, left: Any, right: Any) -> Array:
    """Set dst[i] = left[i] + right[i], with the bits of ordered sums. Return dst.

    dst may be left or right. All have the same count and dtype: integers, float32, float64 or
    complex. Use it to build parts from the operands of single workers. Raises InvalidArgument, and
    Unsupported for other dtypes.
    """
    first, target = pair(left, dst)
    second, _ = pair(right, dst)
    if target.contents is not None:
        raise InvalidArgument("dst: on a GPU, but add takes arrays in host memory")
    expect("left", first.count, target.count, "like dst")
    expect("right", second.count, target.count, "like dst")
    pointers = pointer(target), pointer(first), pointer(second)
    check(lib.ddl_add(*pointers, target.count, target.dtype.value))
    return dst


def add_at(dst: int, left: int, right: int, count: int, dtype: DType) -> None:
    """Do `add` for `count` elements at these addresses, for adapters that know the memory."""
    check(lib.ddl_add(_cast(dst), _cast(left), _cast(right), count, dtype.value))


def _cast(address: int) -> Any:
    return ffi.cast("void *", address)
