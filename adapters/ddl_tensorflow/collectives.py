# SPDX-License-Identifier: Apache-2.0
"""Operations on tensors of all ranks, under the names that all adapters of libddl share.

All work eagerly, in tf.function and in functions compiled by XLA, and have gradients. Eager
operations are matched by the order of their calls. In a graph each has a name and is matched by it,
since TensorFlow starts independent operations in any order. The default name (naming.py) has the
function's name and the position in it, so all ranks must trace the same functions. In a graph of
TensorFlow 1 it has the names of the first and the last input instead.

Where an operation has a communicator of some ranks, `comm`, these are meant by all ranks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from ddl_core import adapter, dtypes
from ddl_core.errors import InvalidArgument, Unsupported
from ddl_tensorflow import _build
from ddl_tensorflow.communicators import Communicator, members
from ddl_tensorflow.naming import match

if TYPE_CHECKING:
    from ddl_core.names import Op

_TYPES = {dtype.name for dtype in dtypes.TABLE}

Function = TypeVar("Function", bound=Callable[..., Any])
# What is traced here needs no AutoGraph.
_as_it_is: Callable[[Function], Function] = tf.autograph.experimental.do_not_convert


@_as_it_is
def allreduce(
    tensor: Any, op: Op = "sum", name: str | None = None, *, comm: Communicator | None = None
) -> tf.Tensor:
    """Combine the ranks' tensors, element by element; all ranks get the same bits.

    tensor   of the same shape and type on all ranks
    op       "sum", "average", "min", "max", "product", "bit_and", "bit_or" or "bit_xor". Integers
             wrap; their average truncates
    name     by which the operation is matched; None: see the top of this file
    comm     of `split` or `subset`: the ranks that take part; None: all

    All ranks call it. Has a gradient for sums and averages: that of all ranks' results. Raises
    ddl_core.errors.InvalidArgument (a ValueError) for an unknown op and for what is no dense
    tensor, Unsupported (there a TypeError) for an element type that cannot be reduced so,
    InvalidState before init; and when it runs tf.errors.FailedPreconditionError when ranks call
    different things, UnavailableError when a rank dies, AbortedError and DeadlineExceededError.
    """
    number, *_ = members(comm)
    return _call("allreduce", name, number, checked("allreduce", tensor, op=op), op=op)


@_as_it_is
def grouped_allreduce(
    tensors: Sequence[Any],
    op: Op = "sum",
    name: str | None = None,
    *,
    comm: Communicator | None = None,
) -> list[tf.Tensor]:
    """`allreduce` of several tensors as one operation, in which small ones travel together.

    tensors  in the same order on all ranks; they may be of different shapes and types

    All ranks call it. Otherwise as `allreduce`.
    """
    number, *_ = members(comm)
    tensors = [
        checked("grouped_allreduce", tensor, f"tensors[{index}]", op)
        for index, tensor in enumerate(tensors)
    ]
    if not tensors:
        return []
    return list(_call("grouped_allreduce", name, number, tensors, op=op))


@_as_it_is
def broadcast(
    tensor: Any, root: int = 0, name: str | None = None, *, comm: Communicator | None = None
) -> tf.Tensor:
    """The root's tensor, on all ranks.

    tensor   of the same shape and type on all ranks. On other ranks than the root its values do not
             matter
    root     the rank whose values all get, among those of comm

    All ranks call it. Its gradient on the root is the sum of all ranks' gradients, elsewhere 0.
    Raises like `allreduce`; InvalidArgument for a root that is no rank.
    """
    number, _, size = members(comm)
    root = adapter.check_rank("root", root, size)
    return _call("broadcast", name, number, checked("broadcast", tensor), root=root)


@_as_it_is
def allgather(
    tensor: Any,
    rows: Sequence[int] | None = None,
    name: str | None = None,
    *,
    comm: Communicator | None = None,
) -> tf.Tensor:
    """The ranks' tensors one after the other, along the first dimension.

    tensor   of the same type on all ranks, and of the same shape but for the first dimension
    rows     the first dimension's size on each rank; None: found out, by an exchange that takes a
             moment. In functions compiled by XLA None means that all have as many as this one

    Returns a tensor of shape (sum of rows, ...); of shape (size,) for scalars. All ranks call it,
    and either all or none with rows. Has a gradient. Raises like `allreduce`.
    """
    number, rank, size = members(comm)
    given = [] if rows is None else adapter.check_rows("rows", rows, size)
    tensor = checked("allgather", tensor)
    if given and tensor.shape.rank and tensor.shape[0] not in (None, given[rank]):
        raise InvalidArgument(
            f"rows: is {given[rank]} for this rank, whose tensor has {tensor.shape[0]}"
        )
    if rows is None and in_xla() and tensor.shape.rank is not None:
        own = 1 if tensor.shape.rank == 0 else tensor.shape[0]
        given = [] if own is None else [own] * size  # the gradient needs it too
    result, _ = _call("allgather", name, number, tensor, rows=given)
    if tensor.shape.rank == 0:
        result = tf.ensure_shape(result, [size]) if given else _shaped(result, [size])
    elif given and tensor.shape.rank is not None:
        result = _shaped(result, [sum(given), *tensor.shape[1:]])
    return result


@_as_it_is
def reduce_scatter(
    tensor: Any,
    op: Op = "sum",
    rows: Sequence[int] | None = None,
    name: str | None = None,
    *,
    comm: Communicator | None = None,
) -> tf.Tensor:
    """Return this rank's part of what `allreduce` would give. Parts are along the first dimension.

    tensor   of the same shape and type on all ranks
    op       as for `allreduce`
    rows     the size of each rank's part, equal on all ranks; None: equal parts, which the first
             dimension must allow

    All ranks call it. Has a gradient for sums and averages. Raises like `allreduce`;
    InvalidArgument, or in a graph that does not know the shape tf.errors.InvalidArgumentError, when
    the tensor cannot be shared so.
    """
    number, rank, size = members(comm)
    given = [] if rows is None else adapter.check_rows("rows", rows, size)
    tensor = checked("reduce_scatter", tensor, op=op)
    part = given[rank] if given else _part(tensor, size)
    result = _call("reduce_scatter", name, number, tensor, tf.constant(given, tf.int64), op=op)
    return result if part is None else _shaped(result, [part, *tensor.shape[1:]])


@_as_it_is
def alltoall(
    tensor: Any,
    sent_rows: Any | None = None,
    name: str | None = None,
    *,
    comm: Communicator | None = None,
) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
    """Give each rank its part of `tensor`, and get theirs, one after the other in the order of
    ranks. Parts are along the first dimension.

    tensor     of the same type on all ranks, and of the same shape but for the first dimension
    sent_rows  the size of each rank's part, as numbers or as a tensor; None: equal parts

    Returns what was received; with `sent_rows` also how many rows came from each rank, an int64
    tensor of shape (size,). All ranks call it, and either all or none with sent_rows; functions
    compiled by XLA have equal parts. Has a gradient. Raises like `reduce_scatter`.
    """
    number, _, size = members(comm)
    tensor = checked("alltoall", tensor)
    if sent_rows is None:
        _part(tensor, size)
        sent = tf.constant([], tf.int64)
    elif tf.is_tensor(sent_rows):
        if not sent_rows.dtype.is_integer:
            raise InvalidArgument(f"sent_rows: is a tensor of {sent_rows.dtype.name}, not integers")
        sent = tf.cast(sent_rows, tf.int64)
    else:
        given = adapter.check_rows("sent_rows", sent_rows, size)
        if tensor.shape.rank and tensor.shape[0] not in (None, sum(given)):
            raise InvalidArgument(
                f"sent_rows: are {sum(given)} in all, but the tensor has {tensor.shape[0]}"
            )
        sent = tf.constant(given, tf.int64)
    result, received = _call("alltoall", name, number, tensor, sent)
    if sent_rows is None:
        return _shaped(result, tensor.shape)
    return result, _shaped(received, [size])


@_as_it_is
def barrier(name: str | None = None, *, comm: Communicator | None = None) -> Any:
    """Return on no rank, or in a graph complete on none, before every rank has called it."""
    number, *_ = members(comm)
    return _call("barrier", name, number)


def in_xla() -> bool:
    """Whether what is traced here will be compiled by XLA."""
    if tf.executing_eagerly():
        return False
    graph: Any = tf.compat.v1.get_default_graph()
    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))


def _call(what: str, name: str | None, comm: int, *inputs: Any, **attributes: Any) -> Any:
    """Call the native operation `what` on the comm of this number, matched by the name."""
    with _scope(name, what, tf.nest.flatten(inputs)) as scope:
        attributes |= {"tensor_name": match(name, scope, comm), "comm": comm}
        return getattr(_build.load().operations, f"ddl_{what}")(*inputs, **attributes)


_REDUCING = ("allreduce", "grouped_allreduce", "reduce_scatter")


class UnsupportedType(Unsupported, TypeError):
    """Elements of a type that the operation does not take."""


def checked(what: str, value: Any, argument: str = "tensor", op: Any = None) -> tf.Tensor:
    """The `argument` of the operation `what`, converted to a tensor. Refuses what the operation
    cannot do, even while a graph is traced."""
    reduces = what in _REDUCING
    if reduces:
        adapter.check_op(op)
    kind = type(value).__name__
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        raise InvalidArgument(
            f"{argument}: is a {kind}, but {what} takes dense tensors; convert it first"
        )
    try:
        tensor = tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{argument}: a {kind} that is no tensor ({error})") from error
    dtype = tensor.dtype.name
    if dtype not in _TYPES or (reduces and not adapter.has_op(dtype, op)):
        by = f" by {op}" if reduces else ""
        raise UnsupportedType(
            f"{argument}: has elements of {dtype}, which {what}{by} does not take"
        )
    return tensor


def _part(tensor: tf.Tensor, size: int) -> int | None:
    """An equal part of the first dimension; None if the dimension is unknown."""
    if tensor.shape.rank is None or (tensor.shape.rank and tensor.shape[0] is None):
        return None
    return adapter.equal_rows("tensor", tensor.shape.as_list(), size)


def _shaped(tensor: tf.Tensor, shape: Any) -> tf.Tensor:
    """The tensor, with its known shape set in the graph."""
    if not tf.executing_eagerly():
        tensor.set_shape(shape)
    return tensor


@contextmanager
def _scope(name: str | None, what: str, inputs: Sequence[Any]) -> Iterator[str]:
    """Name the graph's node, with only the characters that TensorFlow allows."""
    if not (name is None or isinstance(name, str)):
        raise InvalidArgument(f"name: {name!r} is no string")
    outer: Any = nullcontext()
    if name is None:
        name = f"ddl_{what}"
        graph: Any = tf.compat.v1.get_default_graph()
        if not (tf.executing_eagerly() or graph.building_function):
            # Ranks may build a graph of TensorFlow 1 in any order, such as that of a set.
            ends = [each.name for each in (inputs[:1] + inputs[-1:]) if tf.is_tensor(each)]
            name, outer = "_".join([name, *ends]), tf.compat.v1.name_scope(None)
    with outer, tf.name_scope(re.sub(r"^[^A-Za-z0-9.]|[^\w.\-/]", "_", name)) as scope:
        yield scope
