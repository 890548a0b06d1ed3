# SPDX-License-Identifier: Apache-2.0
"""The keyword options of operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from ddl_core.base._lib import ffi, lib
from ddl_core.base.config import milliseconds, wire_number
from ddl_core.calls.buffer import as_buffer
from ddl_core.calls.gpu import choose_stream
from ddl_core.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddl_core.calls.buffer import Buffer


class MessageOptions(TypedDict, total=False):
    """The options of every operation.

    timeout   the operation's time limit in seconds; None: the comm's. Reaching it kills the comm
    queued    for the `..._async` forms only: also report the work through Comm.completed
    """

    timeout: float | None
    queued: bool


class Options(MessageOptions, total=False):
    """The options of every collective operation.

    name     match the operation by name instead of by order: each rank may call named operations in
             any order, independent of unnamed ones. At most 255 bytes; None: by order
    stream   for arrays on a GPU only: the CUDA stream of the operation, given as its address, or as
             an object with `__cuda_stream__`, `cuda_stream` (PyTorch) or `ptr` (CuPy). The
             operation waits for earlier work in the stream, and later work waits for the results.
             None: the stream that the arrays name by `__cuda_array_interface__`, else the default
             stream
    """

    name: str | None
    stream: Any


class ReduceOptions(Options, total=False):
    """The options of every operation that reduces, for floats and complex numbers only.

    prescale    a factor for this rank's elements before the reduction
    postscale   a factor for the result after the reduction, equal on all ranks
    residual    for an allreduce or a reduce_scatter of float32 with "sum" or "average": a float32
                array as long as `send`, initially zeros, for the rounding errors of the wire format
                (see docs/wire.md). The call adds it to `send`, and stores the new errors in it.
                None: the errors are lost
    wire        the format of this allreduce or reduce_scatter between hosts, equal on all ranks:
                "f32", or for float32 with "sum" or "average" in host memory "bf16", "int8" or
                "int4". None: the comm's format
    """

    prescale: float
    postscale: float
    residual: Any
    wire: str | None


class GatherOptions(Options, total=False):
    """The options of `allgather` and `allgatherv`.

    wire   the format between hosts, equal on all ranks: "f32", or for float32 in host memory
           "bf16", "int8" or "int4", which round what all ranks receive (see docs/wire.md). None:
           "f32", even if the comm has another format
    """

    wire: str | None


# The former names for the asynchronous operations.
AsyncMessageOptions, AsyncOptions, AsyncReduceOptions = MessageOptions, Options, ReduceOptions


@dataclass(slots=True)
class Native:
    """A ddl_options, or NULL if all options have their defaults. The pointer is valid as long as
    this object exists."""

    pointer: Any
    name: Any
    residual: Buffer | None = None


DEFAULTS = Native(ffi.NULL, None)
_KNOWN = frozenset(ReduceOptions.__annotations__)


def native(
    options: MessageOptions, buffers: Sequence[Buffer], group: Any = None, wait_ms: int = 0
) -> Native:
    """Return the ddl_options for an operation on `buffers`, collected into the ddl_group `group` if
    there is one.

    wait_ms: how long the call itself waits. If the operation completes within this time, the call
    returns no work.

    Raises InvalidArgument for a wrong value, and TypeError for an unknown option, as functions do.
    """
    given: dict[str, Any] = {k: v for k, v in options.items() if v is not None}
    if not given.keys() <= _KNOWN:
        raise TypeError(f"unexpected keyword argument {min(given.keys() - _KNOWN)!r}")
    if wait_ms and given.get("queued"):
        raise InvalidArgument(
            "queued is set, but a blocking call has no completion to report; start the"
            " operation instead"
        )
    # In place both buffers are the same, whose producer is asked once.
    own = {id(b): b.contents for b in buffers if b.contents is not None}
    contents = list(own.values())
    if not given and group is None and not wait_ms and not contents:
        return DEFAULTS
    if not contents and "stream" in given:
        raise InvalidArgument(
            "stream is set, but the arrays are in host memory; set it only for arrays on a GPU"
        )
    name = _name(given.get("name"))
    fields = {
        "struct_size": ffi.sizeof("ddl_options"),
        "timeout_ms": milliseconds(given.get("timeout"), "timeout"),
        "queued": bool(given.get("queued")),
        "wait_ms": wait_ms,
        "name": name,
        "prescale": _factor(given.get("prescale"), "prescale"),
        "postscale": _factor(given.get("postscale"), "postscale"),
        "group": ffi.NULL if group is None else group,
        "wire": wire_number(given.get("wire")),
    }
    residual = _residual(given.get("residual"), buffers)
    if residual is not None:
        fields["residual"] = ffi.cast("float *", residual.address)
    if contents:
        fields["memory"] = lib.DDL_MEMORY_CUDA
        if group is None:  # otherwise the submission of the group has it
            fields["stream"] = ffi.cast("void *", choose_stream(contents, given.get("stream")))
    return Native(ffi.new("ddl_options *", fields), name, residual)


def _residual(array: Any, buffers: Sequence[Buffer]) -> Buffer | None:
    if array is None:
        return None
    buffer = as_buffer(array, "residual", write=True)
    if buffer.contents is not None or not buffers:
        raise InvalidArgument("residual must be in host memory, for an operation with arrays")
    if buffer.dtype.name != "float32" or buffer.count != buffers[0].count:
        raise InvalidArgument(
            f"residual has {buffer.count} elements of {buffer.dtype.name}; must have"
            f" {buffers[0].count} of float32, as many as send has"
        )
    return buffer


def _name(name: Any) -> Any:
    if name is None:
        return ffi.NULL
    if not isinstance(name, str) or not name or "\0" in name:
        raise InvalidArgument(f"name is {name!r}; must be a str of at least one character")
    return ffi.new("char[]", name.encode())


def _factor(value: Any, argument: str) -> float:
    """Return a factor of a reduction, or 0 for None. The library treats 0 as 1, so an explicit 0 is
    an error."""
    if value is None:
        return 0.0
    try:
        factor = float(value)
    except (TypeError, ValueError):
        raise InvalidArgument(f"{argument} is {value!r}; must be a number") from None
    if factor == 0:
        raise InvalidArgument(f"{argument} is {value}, which would make all results zero")
    return factor
