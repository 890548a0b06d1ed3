"""Check the arguments of an operation and put them in the order of ddl.h."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, SupportsFloat, TypeVar

from ddl_core._lib import ffi, lib
from ddl_core.buffer import Buffer, as_buffer
from ddl_core.config import integer, milliseconds
from ddl_core.errors import InvalidArgument

OPS = {"sum": 1, "average": 2, "min": 3, "max": 4, "product": 5}

Array = TypeVar("Array")


@dataclass(slots=True)
class Call(Generic[Array]):
    """`function(comm, *arguments, options, work)`, the array that it fills, and what must stay
    alive until it is complete."""

    function: Any
    arguments: tuple[Any, ...]
    result: Array
    keep: object


def allreduce(send: Array, recv: Array | None, op: str) -> Call[Array]:
    source, target = _pair(send, recv)
    _expect("recv", target.count, source.count, "like send")
    arguments = (*_pointers(source, target), source.count, source.dtype.value, _op(op))
    return Call(lib.ddl_allreduce, arguments, send if recv is None else recv, (source, target))


def reduce_scatter(send: Array, recv: Array | None, op: str, size: int) -> Call[Array]:
    source, target = _pair(send, recv)
    if recv is None:
        count = _block("send", source, size)
    else:
        count = target.count
        _expect("send", source.count, size * count, f"{size} blocks like recv")
    arguments = (*_pointers(source, target), count, source.dtype.value, _op(op))
    return Call(lib.ddl_reduce_scatter, arguments, send if recv is None else recv, (source, target))


def allgather(send: Array, recv: Array | None, size: int) -> Call[Array]:
    source, target = _pair(send, recv)
    if recv is None:
        count = _block("send", source, size)
    else:
        count = source.count
        _expect("recv", target.count, size * count, f"{size} blocks like send")
    arguments = (*_pointers(source, target), count, source.dtype.value)
    return Call(lib.ddl_allgather, arguments, send if recv is None else recv, (source, target))


def broadcast(array: Array, root: int, size: int) -> Call[Array]:
    buffer = as_buffer(array, "array", write=True)
    root = integer(root, "root", 0, size - 1)
    arguments = (_pointer(buffer), buffer.count, buffer.dtype.value, root)
    return Call(lib.ddl_broadcast, arguments, array, buffer)


def barrier() -> Call[None]:
    return Call(lib.ddl_barrier, (), None, None)


def options(timeout: SupportsFloat | None) -> Any:
    """The ddl_options for an operation's own limit in seconds."""
    if timeout is None:
        return ffi.NULL
    fields = {"struct_size": ffi.sizeof("ddl_options")}
    return ffi.new("ddl_options *", fields | {"timeout_ms": milliseconds(timeout, "timeout")})


def _pair(send: Any, recv: Any) -> tuple[Buffer, Buffer]:
    if recv is None:
        buffer = as_buffer(send, "send", write=True)
        return buffer, buffer
    source = as_buffer(send, "send")
    target = as_buffer(recv, "recv", write=True)
    if source.dtype is not target.dtype:
        raise InvalidArgument(f"recv: dtype {target.dtype.name}, but send has {source.dtype.name}")
    return source, target


def _expect(argument: str, count: int, expected: int, reason: str) -> None:
    if count != expected:
        raise InvalidArgument(f"{argument}: {count} elements, expected {expected}: {reason}")


def _block(argument: str, whole: Buffer, size: int) -> int:
    count, rest = divmod(whole.count, size)
    if rest:
        raise InvalidArgument(
            f"{argument}: {whole.count} elements are no {size} blocks of equal size"
        )
    return count


def _op(name: str) -> int:
    try:
        return OPS[name]
    except (KeyError, TypeError):
        raise InvalidArgument(f"op: {name!r} is none of {', '.join(OPS)}") from None


def _pointer(buffer: Buffer) -> Any:
    return ffi.cast("void *", buffer.address)


def _pointers(source: Buffer, target: Buffer) -> tuple[Any, Any]:
    return _pointer(source), _pointer(target)
