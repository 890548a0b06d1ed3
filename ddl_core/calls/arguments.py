# SPDX-License-Identifier: Apache-2.0
"""Checks of an operation's arguments, and their conversion to the order of ddl.h."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, SupportsIndex, TypeVar

from ddl_core.base._lib import ffi, lib
from ddl_core.base.config import INT_MAX, integer
from ddl_core.calls.buffer import Buffer, as_buffer
from ddl_core.errors import InvalidArgument

_OP_NAMES = (
    *("sum", "average", "min", "max", "product"),
    *("bit_and", "bit_or", "bit_xor", "logical_and", "logical_or"),
)
OPS = {name: value for value, name in enumerate(_OP_NAMES, 1)}

Array = TypeVar("Array")
Result = TypeVar("Result")


@dataclass(slots=True)
class Call(Generic[Result]):
    """A call of libddl: `function(comm, *arguments, options, work)`.

    result   the array that the call fills
    buffers  the memory that it uses
    sender   where a receive stores the sender's rank
    keep     other objects that it uses

    All of these stay alive until the call is complete.
    """

    function: Any
    arguments: tuple[Any, ...]
    result: Result
    buffers: Sequence[Buffer] = ()
    sender: Any = None
    keep: object = None


# ---- equal counts on all ranks ----


def allreduce(send: Array, recv: Array | None, op: str) -> Call[Array]:
    source, target = pair(send, recv)
    expect("recv", target.count, source.count, "like send")
    arguments = (*_pointers(source, target), source.count, source.dtype.value, op_value(op))
    return Call(lib.ddl_allreduce, arguments, send if recv is None else recv, (source, target))


def reduce(
    send: Array, recv: Array | None, op: str, root: SupportsIndex, rank: int, size: int
) -> Call[Array | None]:
    root = root_rank(root, size)
    if rank == root:
        source, target = pair(send, recv)
        expect("recv", target.count, source.count, "like send")
        result, pointers = send if recv is None else recv, _pointers(source, target)
    else:
        source = target = as_buffer(send, "send")
        result, pointers = None, (pointer(source), ffi.NULL)
    arguments = (*pointers, source.count, source.dtype.value, op_value(op), root)
    return Call(lib.ddl_reduce, arguments, result, (source, target))


def reduce_scatter(send: Array, recv: Array | None, op: str, size: int) -> Call[Array]:
    source, target = pair(send, recv)
    if recv is None:
        count = _block("send", source, size)
    else:
        count = target.count
        expect("send", source.count, size * count, f"{size} blocks like recv")
    arguments = (*_pointers(source, target), count, source.dtype.value, op_value(op))
    return Call(lib.ddl_reduce_scatter, arguments, send if recv is None else recv, (source, target))


def allgather(send: Array, recv: Array | None, size: int) -> Call[Array]:
    source, target, count = _gathered(send, recv, size)
    arguments = (*_pointers(source, target), count, source.dtype.value)
    return Call(lib.ddl_allgather, arguments, send if recv is None else recv, (source, target))


def gather(
    send: Array, recv: Array | None, root: SupportsIndex, rank: int, size: int
) -> Call[Array | None]:
    root = root_rank(root, size)
    if rank == root:
        source, target, count = _gathered(send, recv, size)
        result, pointers = send if recv is None else recv, _pointers(source, target)
    else:
        source = target = as_buffer(send, "send")
        result, pointers, count = None, (pointer(source), ffi.NULL), source.count
    arguments = (*pointers, count, source.dtype.value, root)
    return Call(lib.ddl_gather, arguments, result, (source, target))


def scatter(
    send: Array | None, recv: Array | None, root: SupportsIndex, rank: int, size: int
) -> Call[Array]:
    root = root_rank(root, size)
    if rank == root and recv is None:
        source = buffer = as_buffer(send, "send")
        arguments = (pointer(buffer), ffi.NULL, _block("send", buffer, size))
    elif rank == root:
        source, buffer = pair(send, recv)
        expect("send", source.count, size * buffer.count, f"{size} blocks like recv")
        arguments = (*_pointers(source, buffer), buffer.count)
    else:
        source = buffer = as_buffer(recv, "recv", write=True)
        arguments = (ffi.NULL, pointer(buffer), buffer.count)
    result: Any = send if recv is None else recv
    return Call(lib.ddl_scatter, (*arguments, buffer.dtype.value, root), result, (source, buffer))


def alltoall(send: Array, recv: Array | None, size: int) -> Call[Array]:
    source, target = pair(send, recv)
    count = _block("send", source, size)
    expect("recv", target.count, source.count, "like send")
    arguments = (*_pointers(source, target), count, source.dtype.value)
    return Call(lib.ddl_alltoall, arguments, send if recv is None else recv, (source, target))


def broadcast(array: Array, root: SupportsIndex, size: int) -> Call[Array]:
    buffer = as_buffer(array, "array", write=True)
    root = root_rank(root, size)
    arguments = (pointer(buffer), buffer.count, buffer.dtype.value, root)
    return Call(lib.ddl_broadcast, arguments, array, (buffer,))


def barrier() -> Call[None]:
    return Call(lib.ddl_barrier, (), None)


# ---- messages ----


def send(array: Any, dest: SupportsIndex, tag: SupportsIndex, size: int) -> Call[None]:
    buffer = as_buffer(array, "array")
    where = integer(dest, "dest", 0, size - 1), integer(tag, "tag", 0, INT_MAX)
    arguments = (pointer(buffer), buffer.count, buffer.dtype.value, *where)
    return Call(lib.ddl_send, arguments, None, (buffer,))


def recv(array: Array, source: SupportsIndex | None, tag: SupportsIndex, size: int) -> Call[Array]:
    buffer = as_buffer(array, "array", write=True)
    where = _source(source, size), integer(tag, "tag", 0, INT_MAX)
    sender = ffi.new("int *", -1)
    arguments = (pointer(buffer), buffer.count, buffer.dtype.value, *where, sender)
    return Call(lib.ddl_recv, arguments, array, (buffer,), sender)


def sendrecv(
    send: Any,
    recv: Array,
    dest: SupportsIndex,
    source: SupportsIndex | None,
    tags: tuple[SupportsIndex, SupportsIndex],
    size: int,
) -> Call[Array]:
    if recv is None:
        raise InvalidArgument("recv is None, but a sendrecv cannot be in place; pass an array")
    given, taken = pair(send, recv)
    sent = integer(dest, "dest", 0, size - 1), integer(tags[0], "send_tag", 0, INT_MAX)
    received = _source(source, size), integer(tags[1], "recv_tag", 0, INT_MAX)
    arguments = (
        *(pointer(given), given.count, *sent),
        *(pointer(taken), taken.count, *received),
        given.dtype.value,
    )
    return Call(lib.ddl_sendrecv, arguments, recv, (given, taken))


# ---- helpers ----


def pair(send: Any, recv: Any) -> tuple[Buffer, Buffer]:
    """Return both buffers, of one dtype and in one kind of memory. Return the same buffer twice if
    recv is None: the operation is then in place."""
    if recv is None:
        buffer = as_buffer(send, "send", write=True)
        return buffer, buffer
    source = as_buffer(send, "send")
    target = as_buffer(recv, "recv", write=True)
    if source.dtype is not target.dtype:
        raise InvalidArgument(
            f"recv has dtype {target.dtype.name}, but send has {source.dtype.name}; must be equal"
        )
    expect_memory("recv", target, "send", source)
    return source, target


def expect_memory(argument: str, buffer: Buffer, other_name: str, other: Buffer) -> None:
    """Raise InvalidArgument unless both buffers are in host memory, or both on a GPU."""
    if (buffer.contents is None) != (other.contents is None):
        raise InvalidArgument(
            f"{argument}: {_place(buffer)}, but {other_name} is {_place(other)}; copy one of them"
        )


def _place(buffer: Buffer) -> str:
    return "in host memory" if buffer.contents is None else "on a GPU"


def expect(argument: str, count: int, expected: int, reason: str) -> None:
    """Raise InvalidArgument unless the count is as expected."""
    if count != expected:
        raise InvalidArgument(f"{argument} has {count} elements; must have {expected}: {reason}")


def op_value(name: str) -> int:
    """Return the ddl_op of this name."""
    try:
        return OPS[name]
    except (KeyError, TypeError):
        raise InvalidArgument(f"op is {name!r}; must be one of {', '.join(OPS)}") from None


def root_rank(root: SupportsIndex, size: int) -> int:
    return integer(root, "root", 0, size - 1)


def pointer(buffer: Buffer) -> Any:
    return ffi.cast("void *", buffer.address)


def _pointers(source: Buffer, target: Buffer) -> tuple[Any, Any]:
    return pointer(source), pointer(target)


def _block(argument: str, whole: Buffer, size: int) -> int:
    count, rest = divmod(whole.count, size)
    if rest:
        raise InvalidArgument(
            f"{argument} has {whole.count} elements, which cannot be divided into {size} equal"
            " blocks"
        )
    return count


def _gathered(send: Any, recv: Any, size: int) -> tuple[Buffer, Buffer, int]:
    """Return both buffers, and the number of elements from each rank."""
    source, target = pair(send, recv)
    if recv is None:
        return source, target, _block("send", source, size)
    expect("recv", target.count, size * source.count, f"{size} blocks like send")
    return source, target, source.count


def _source(source: SupportsIndex | None, size: int) -> int:
    return lib.DDL_ANY_SOURCE if source is None else integer(source, "source", 0, size - 1)
