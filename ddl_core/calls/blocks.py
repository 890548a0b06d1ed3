# SPDX-License-Identifier: Apache-2.0
"""The arguments of operations whose blocks differ in size between ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex, TypeVar

from ddl_core.base._lib import ffi, lib
from ddl_core.base.config import integer
from ddl_core.calls.arguments import Call, expect, op_value, pair, pointer, root_rank
from ddl_core.calls.buffer import Buffer, as_buffer
from ddl_core.errors import InvalidArgument

Array = TypeVar("Array")
Numbers = Sequence[SupportsIndex]

_MOST = 2**48 - 1  # the most elements, limited by the library


class Blocks:
    """The blocks of all ranks: counts and displacements.

    `what` is the prefix of the arguments' names: "", "send_" or "recv_". Without displacements the
    blocks follow each other in rank order.
    """

    def __init__(self, counts: Numbers | None, displs: Numbers | None, size: int, what: str = ""):
        self._name = f"{what}counts"
        self.counts = _numbers(counts, self._name, size)
        self._displs = None if displs is None else _numbers(displs, f"{what}displs", size)
        self.pointers = (
            ffi.new("int64_t[]", self.counts),
            ffi.NULL if self._displs is None else ffi.new("int64_t[]", self._displs),
        )

    def expect_in(self, argument: str, buffer: Buffer) -> None:
        """Raise InvalidArgument unless the buffer can hold the blocks. Without displacements, the
        buffer must have no other elements."""
        if self._displs is None:
            expect(argument, buffer.count, sum(self.counts), f"the sum of {self._name}")
            return
        ends = (d + n for d, n in zip(self._displs, self.counts, strict=True) if n)
        end = max(ends, default=0)
        if buffer.count < end:
            raise InvalidArgument(
                f"{argument} has {buffer.count} elements, but the blocks end at element {end}"
            )


def reduce_scatterv(
    send: Array, recv: Array | None, counts: Numbers, op: str, rank: int, size: int
) -> Call[Array]:
    source, target = pair(send, recv)
    blocks = Blocks(counts, None, size)
    blocks.expect_in("send", source)
    if recv is not None:
        expect("recv", target.count, blocks.counts[rank], f"counts[{rank}]")
    arguments = (pointer(source), pointer(target), blocks.pointers[0])
    types = (source.dtype.value, op_value(op))
    result = send if recv is None else recv
    return Call(lib.ddl_reduce_scatterv, (*arguments, *types), result, (source, target))


def allgatherv(
    send: Array, recv: Array | None, counts: Numbers, displs: Numbers | None, rank: int, size: int
) -> Call[Array]:
    source, target, blocks = _gathered(send, recv, counts, displs, rank, size)
    arguments = (pointer(source), pointer(target), *blocks.pointers, source.dtype.value)
    result = send if recv is None else recv
    return Call(lib.ddl_allgatherv, arguments, result, (source, target))


def gatherv(
    send: Array,
    recv: Array | None,
    counts: Numbers | None,
    displs: Numbers | None,
    root: SupportsIndex,
    rank: int,
    size: int,
) -> Call[Array | None]:
    root = root_rank(root, size)
    arguments: tuple[Any, ...]
    if rank == root:
        source, target, blocks = _gathered(send, recv, counts, displs, rank, size)
        arguments = (pointer(source), blocks.counts[rank], pointer(target), *blocks.pointers)
        result = send if recv is None else recv
    else:
        source = target = as_buffer(send, "send")
        arguments = (pointer(source), source.count, ffi.NULL, ffi.NULL, ffi.NULL)
        result = None
    return Call(lib.ddl_gatherv, (*arguments, source.dtype.value, root), result, (source, target))


def scatterv(
    send: Array | None,
    recv: Array | None,
    counts: Numbers | None,
    displs: Numbers | None,
    root: SupportsIndex,
    rank: int,
    size: int,
) -> Call[Array]:
    root = root_rank(root, size)
    arguments: tuple[Any, ...]
    if rank != root:
        source = buffer = as_buffer(recv, "recv", write=True)
        arguments = (ffi.NULL, ffi.NULL, ffi.NULL, pointer(buffer), buffer.count)
    else:
        blocks = Blocks(counts, displs, size)
        count = blocks.counts[rank]
        if recv is None:
            buffer = source = as_buffer(send, "send")
            target = ffi.NULL
        else:
            source, buffer = pair(send, recv)
            expect("recv", buffer.count, count, f"counts[{rank}]")
            target = pointer(buffer)
        blocks.expect_in("send", source)
        arguments = (pointer(source), *blocks.pointers, target, count)
    result: Any = send if recv is None else recv
    return Call(lib.ddl_scatterv, (*arguments, buffer.dtype.value, root), result, (source, buffer))


def alltoallv(
    send: Array,
    recv: Array | None,
    counts: tuple[Numbers, Numbers | None],
    displs: tuple[Numbers | None, Numbers | None],
    size: int,
) -> Call[Array]:
    source, target = pair(send, recv)
    sent = Blocks(counts[0], displs[0], size, "send_")
    if counts[1] is None and displs[1] is None and recv is None:
        received = sent
    else:
        received = Blocks(counts[1], displs[1], size, "recv_")
    sent.expect_in("send", source)
    received.expect_in("send" if recv is None else "recv", target)
    arguments = (
        *(pointer(source), *sent.pointers),
        *(pointer(target), *received.pointers),
        source.dtype.value,
    )
    return Call(lib.ddl_alltoallv, arguments, send if recv is None else recv, (source, target))


def _gathered(
    send: Any, recv: Any, counts: Numbers | None, displs: Numbers | None, rank: int, size: int
) -> tuple[Buffer, Buffer, Blocks]:
    source, target = pair(send, recv)
    blocks = Blocks(counts, displs, size)
    if recv is not None:
        expect("send", source.count, blocks.counts[rank], f"counts[{rank}]")
    blocks.expect_in("send" if recv is None else "recv", target)
    return source, target, blocks


def _numbers(values: Numbers | None, argument: str, size: int) -> list[int]:
    """Return the values as ints. Raises InvalidArgument unless there is one for each rank."""
    try:
        given = list(values)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidArgument(f"{argument} is {values!r}; must be a sequence of integers") from None
    if len(given) != size:
        raise InvalidArgument(
            f"{argument} has {len(given)} entries; must have {size}, one for each rank"
        )
    return [integer(value, f"{argument}[{i}]", 0, _MOST) for i, value in enumerate(given)]
