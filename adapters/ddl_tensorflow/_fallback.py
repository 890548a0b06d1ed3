# SPDX-License-Identifier: Apache-2.0
"""The operations without a compiler: kernels in Python, registered through TensorFlow's C API.

Names, types and attributes are the same as in csrc/ops.cpp, and each kernel makes the same calls of
libddl as csrc/kernels.cpp. So gradients, results and errors are the same, and ranks with and
without the native part work together.

Design notes.

A kernel holds a thread of TensorFlow until its operation is complete. (The C API has asynchronous
kernels, but frees their callback when they return.) So all ranks must start operations in the same
order; otherwise all threads of one rank might wait for operations that have no thread on another.
Within a tf.function, operations with effects run in the order of the program. In the gradient
function that TensorFlow creates for a tape outside of the tf.function, they do not, so each
operation of a graph gets a control dependency on the previous one. In a plain graph, which ranks
may build in any order, operations are not supported.

TensorFlow never frees a kernel's argument, so kernels of equal attributes share it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2, op_def_pb2
from tensorflow.python.framework import _pywrap_python_op_gen, op_def_registry
from tensorflow.python.ops import control_flow_util

import ddl_core
from ddl_core import errors
from ddl_tensorflow import _c_api as c
from ddl_tensorflow import calls

if TYPE_CHECKING:
    from ddl_core.base.names import Op

LOST = (
    "Until then ddl_tensorflow works without its native part: operations take longer, hold a thread"
    " of TensorFlow while they wait, and do not work in functions with jit_compile=True"
)
_GRACE_PERIOD = 1.0  # seconds for pending operations to end before an abort

_TYPE, _TYPES, _NAME = "T: type", "T: list(type)", "tensor_name: string = ''"
_COMM = "comm: int = 0"
_OP = "op: {'sum','average','min','max','product','bit_and','bit_or','bit_xor'} = 'sum'"
_CODES = {
    errors.InvalidArgument: tf.errors.INVALID_ARGUMENT,
    **dict.fromkeys((errors.Mismatch, errors.InvalidState), tf.errors.FAILED_PRECONDITION),
    errors.Unsupported: tf.errors.UNIMPLEMENTED,
    **dict.fromkeys((errors.TimedOut, errors.Expired), tf.errors.DEADLINE_EXCEEDED),
    **dict.fromkeys((errors.OutOfMemory, errors.SystemRefused), tf.errors.RESOURCE_EXHAUSTED),
    **dict.fromkeys((errors.Unreachable, errors.Refused), tf.errors.UNAVAILABLE),
    **dict.fromkeys((errors.PeerLost, errors.Minority), tf.errors.UNAVAILABLE),
    errors.Aborted: tf.errors.ABORTED,
}  # the same as in csrc/status.hpp


# ---- the worlds ----


class PendingWorld:
    """A comm, and the operations that are pending on it."""

    def __init__(self, comm: ddl_core.Comm) -> None:
        self._comm = comm
        self._changed = threading.Condition()
        self._started = 0
        # Names of pending operations: libddl rejects a second one of the same name.
        self._names: set[str] = set()

    def close(self) -> None:
        """Wait for the pending operations. Abort the comm if they take longer than
        _GRACE_PERIOD. The caller still closes the comm."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._started == 0, _GRACE_PERIOD):
                self._comm.abort("shut down with operations pending")
                self._changed.wait_for(lambda: self._started == 0)

    @contextmanager
    def operation(self, name: str) -> Iterator[ddl_core.Comm]:
        """Yield the comm for an operation of this name. Waits first until no other operation of
        this name is pending."""
        with self._changed:
            self._started += 1
            self._changed.wait_for(lambda: name not in self._names)
            if name:
                self._names.add(name)
        try:
            yield self._comm
        finally:
            with self._changed:
                self._started -= 1
                self._names.discard(name)
                self._changed.notify_all()


class Worlds:
    """The open worlds. Number 0 has all ranks, and each other number has some of them."""

    def __init__(self) -> None:
        self._open: dict[int, PendingWorld] = {}

    def open(self, number: int, comm: ddl_core.Comm) -> None:
        """Make the comm usable by operations."""
        self._open[number] = PendingWorld(comm)

    def close(self) -> None:
        """Close all worlds."""
        closing, self._open = self._open, {}
        for world in closing.values():
            world.close()

    def find(self, number: int) -> PendingWorld:
        """Return the world with this number. Raises InvalidState if there is none."""
        world = self._open.get(number)
        if world is None:
            raise errors.InvalidState(
                "comm: was created before shutdown(); create it again"
                if number
                else "not initialized; call init() first"
            )
        return world


worlds = Worlds()


# ---- the kernels ----


class _Node(NamedTuple):
    """The attributes of a graph operation, which are passed to its kernel."""

    what: str
    name: str  # "" means matched by order
    op: Op
    root: int
    rows: tuple[int, ...]
    comm: int  # the world's number
    call: int  # the function's number in calls.py


def _allreduce(call: c.Context, node: _Node, comm: ddl_core.Comm, name: str | None) -> None:
    send, recv = call.forwarded(0)
    comm.allreduce(send, recv, op=node.op, name=name)


def _grouped_allreduce(call: c.Context, node: _Node, comm: ddl_core.Comm, name: str | None) -> None:
    with comm.group() as group:
        for i in range(call.inputs):
            group.allreduce(*call.forwarded(i), op=node.op)
        group.submit(name=name)
    group.close()


def _broadcast(call: c.Context, node: _Node, comm: ddl_core.Comm, name: str | None) -> None:
    send, recv = call.forwarded(0)
    if recv is None:
        recv = send
    elif comm.rank == node.root:
        recv[...] = send
    comm.broadcast(recv, node.root, name=name)


def _allgather(call: c.Context, node: _Node, comm: ddl_core.Comm, name: str | None) -> None:
    send = call.input(0)
    of_rank = call.output(1, (comm.size,), np.dtype(np.int64))
    own = len(send) if send.ndim else 1
    if node.rows:
        _expect(
            len(node.rows) == comm.size,
            f"rows: has {len(node.rows)} numbers; must have one for each of {comm.size} ranks",
        )
        _expect(
            node.rows[comm.rank] == own,
            f"rows: is {node.rows[comm.rank]} for this rank, but its tensor has {own}",
        )
        of_rank[:] = node.rows
    else:
        comm.allgather(np.array([own], np.int64), of_rank, name=name and f"{name}/rows")
    recv = call.output(0, (int(of_rank.sum()), *send.shape[1:]), send.dtype)
    comm.allgatherv(send, recv, counts=_times(of_rank, send), name=name)


def _reduce_scatter(call: c.Context, node: _Node, comm: ddl_core.Comm, name: str | None) -> None:
    send = call.input(0)
    rows = _parts(call.input(1), send, comm.size, "rows")
    recv = call.output(0, (int(rows[comm.rank]), *send.shape[1:]), send.dtype)
    comm.reduce_scatterv(send, recv, counts=_times(rows, send), op=node.op, name=name)


def _alltoall(call: c.Context, node: _Node, comm: ddl_core.Comm, name: str | None) -> None:
    send, given = call.input(0), call.input(1)
    sent = _parts(given, send, comm.size, "sent_rows")
    received = call.output(1, (comm.size,), np.dtype(np.int64))
    if len(given):
        comm.alltoall(sent, received, name=name and f"{name}/rows")
    else:
        received[:] = sent
    recv = call.output(0, (int(received.sum()), *send.shape[1:]), send.dtype)
    to, of = _times(sent, send), _times(received, send)
    comm.alltoallv(send, recv, send_counts=to, recv_counts=of, name=name)


def _barrier(call: c.Context, node: _Node, comm: ddl_core.Comm, name: str | None) -> None:
    comm.barrier(name=name)


def _python(call: c.Context, node: _Node, comm: ddl_core.Comm, name: str | None) -> None:
    inputs = [call.input(index) for index in range(call.inputs)]
    try:
        results = calls.start(node.call, name or "", inputs).result()
    except Exception as error:
        code, message = calls.failure(error)
        kind = tf.compat.v1.errors.exception_type_from_error_code(code)
        raise kind(None, None, message) from error
    for index, result in enumerate(results):
        call.output(index, result.shape, result.dtype)[...] = result


def _parts(given: np.ndarray, tensor: np.ndarray, size: int, argument: str) -> np.ndarray:
    """Return the number of rows for each rank: the given numbers, else equal parts."""
    _expect(tensor.ndim > 0, "tensor: is a scalar, which cannot be divided")
    rows = len(tensor)
    if len(given) == 0:
        shape = list(tensor.shape)
        _expect(
            rows % size == 0,
            f"tensor: the first dimension of shape {shape} is not a multiple of {size}",
        )
        return np.full(size, rows // size, np.int64)
    _expect(
        len(given) == size,
        f"{argument} has {len(given)} numbers; must have one for each of {size} ranks",
    )
    _expect(given.min() >= 0, f"{argument} contains {given.min()}; must be at least 0")
    _expect(
        given.sum() == rows,
        f"{argument}: the sum is {given.sum()}, but the tensor has {rows} rows",
    )
    return given


def _times(rows: np.ndarray, tensor: np.ndarray) -> list[int]:
    """Convert numbers of the tensor's rows to numbers of elements."""
    width = int(np.prod(tensor.shape[1:], dtype=np.int64))
    return [int(each) * width for each in rows]


def _expect(right: Any, text: str) -> None:
    if not right:
        raise errors.InvalidArgument(text)


# ---- the operations ----

_LAST = "_ddl_last"  # attribute of a graph: its latest operation


class _FallbackOp(NamedTuple):
    """The definition of an operation, as in csrc/ops.cpp and csrc/kernels.cpp."""

    attributes: list[str]
    inputs: list[str]
    outputs: list[str]
    run: Callable[[c.Context, _Node, ddl_core.Comm, str | None], None]
    keeps_rows: bool = False  # whether outputs have the shapes of the inputs


_ROWS = "rows: list(int) = []"
_OPERATIONS = {
    "allreduce": _FallbackOp(
        [_TYPE, _OP, _NAME], ["tensor: T"], ["result: T"], _allreduce, keeps_rows=True
    ),
    "grouped_allreduce": _FallbackOp(
        [_TYPES, _OP, _NAME], ["tensors: T"], ["results: T"], _grouped_allreduce, keeps_rows=True
    ),
    "broadcast": _FallbackOp(
        [_TYPE, "root: int = 0", _NAME], ["tensor: T"], ["result: T"], _broadcast, keeps_rows=True
    ),
    "allgather": _FallbackOp(
        [_TYPE, _ROWS, _NAME], ["tensor: T"], ["result: T", "of_rank: int64"], _allgather
    ),
    "reduce_scatter": _FallbackOp(
        [_TYPE, _OP, _NAME], ["tensor: T", "rows: int64"], ["result: T"], _reduce_scatter
    ),
    "alltoall": _FallbackOp(
        [_TYPE, _NAME],
        ["tensor: T", "sent_rows: int64"],
        ["result: T", "received_rows: int64"],
        _alltoall,
    ),
    "barrier": _FallbackOp([_NAME], [], [], _barrier),
    "python": _FallbackOp(
        ["call: int", "Tin: list(type) >= 0", "Tout: list(type) >= 0", _NAME],
        ["inputs: Tin"],
        ["results: Tout"],
        _python,
    ),
}


def operations(reason: str) -> SimpleNamespace:
    """Return the operations as functions, named as by tf.load_op_library. Called once. reason: why
    there is no native part."""
    names = {what: "Ddl" + what.title().replace("_", "") for what in _OPERATIONS}
    for what, operation in _OPERATIONS.items():
        attributes, inputs, outputs, *_ = operation
        c.register_operation(names[what], [*attributes, _COMM], inputs, outputs)
        c.register_kernel(names[what], _maker(what), _runner(operation))
    definitions = [op_def_registry.get(name) for name in names.values()]
    listed = op_def_pb2.OpList(op=definitions).SerializeToString()
    wrappers: dict[str, Any] = {}
    exec(_pywrap_python_op_gen.GetPythonWrappers(listed), wrappers)
    return SimpleNamespace(
        **{
            f"ddl_{what}": _shaped(what, operation, wrappers[f"ddl_{what}"], reason)
            for what, operation in _OPERATIONS.items()
        }
    )


@cache
def _interned(node: _Node) -> _Node:
    return node


def _maker(what: str) -> Callable[[bytes], _Node]:
    def make(definition: bytes) -> _Node:
        given = node_def_pb2.NodeDef.FromString(definition).attr
        return _interned(
            _Node(
                what,
                given["tensor_name"].s.decode(),
                given["op"].s.decode() or "sum",
                given["root"].i,
                tuple(given["rows"].list.i),
                given["comm"].i,
                given["call"].i,
            )
        )

    return make


def _runner(operation: _FallbackOp) -> Callable[[c.Context, _Node], tuple[int, str] | None]:
    def run(call: c.Context, node: _Node) -> tuple[int, str] | None:
        name = node.name and node.name + (f"#{call.iteration}" if call.iteration > 0 else "")
        try:
            with worlds.find(node.comm).operation(name) as comm:
                operation.run(call, node, comm, name or None)
        except errors.DdlError as error:
            return _CODES.get(type(error), tf.errors.INTERNAL), f"ddl {node.what}: {error}"
        return None

    return run


def _shaped(what: str, operation: _FallbackOp, wrapper: Any, reason: str) -> Callable[..., Any]:
    """Return the function that adds the operation to a graph and sets the shapes of its results, as
    far as they are known. It raises Unsupported, with the reason, where only the native part
    works."""

    def call(*inputs: Any, **attributes: Any) -> Any:
        if tf.executing_eagerly():
            return wrapper(*inputs, **attributes)
        graph: Any = tf.compat.v1.get_default_graph()
        where = (
            "a function with jit_compile=True"
            if control_flow_util.GraphOrParentsInXlaContext(graph)
            else ""
            if graph.building_function
            else "a graph outside of tf.function"
        )
        if where:
            raise errors.Unsupported(
                f"{what} is not supported in {where}, because ddl_tensorflow has no native part:"
                f" {reason}"
            )
        with tf.control_dependencies(getattr(graph, _LAST, ())):
            result = wrapper(*inputs, **attributes)
        setattr(graph, _LAST, tf.nest.flatten(result)[:1])
        if operation.keeps_rows:
            for before, after in zip(tf.nest.flatten(inputs), tf.nest.flatten(result), strict=True):
                after.set_shape(before.shape)
        elif what != "python" and operation.outputs:  # the caller of ddl_python knows its shapes
            first, *second = result if isinstance(result, tuple) else [result]
            if inputs[0].shape.rank is not None:
                first.set_shape([None, *inputs[0].shape[1:]])
            for numbers in second:
                numbers.set_shape([None])
        return result

    return call
