# SPDX-License-Identifier: Apache-2.0
"""Operations on tensors of all ranks, under the names that all adapters of libddl share.

All operations work eagerly, in tf.function and in functions compiled by XLA, and have gradients.
Eager operations are matched by the order of their calls. In a graph, operations are matched by
name, since TensorFlow starts independent operations in any order. The default name (naming.py)
consists of the function's name and the operation's position in it, so all ranks must trace the same
functions. In a graph of TensorFlow 1, it consists of the names of the first and the last input
instead.

If an operation has a communicator, `comm`, "all ranks" means the communicator's ranks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from ddl_core import adapter
from ddl_core.calls import dtypes
from ddl_core.errors import InvalidArgument, Unsupported
from ddl_tensorflow import _build
from ddl_tensorflow.communicators import Communicator, members
from ddl_tensorflow.naming import match

if TYPE_CHECKING:
    from ddl_core.base.names import Op

_TYPES = {dtype.name for dtype in dtypes.TABLE}

Function = TypeVar("Function", bound=Callable[..., Any])
# AutoGraph is not needed for functions that are traced here.
_as_it_is: Callable[[Function], Function] = tf.autograph.experimental.do_not_convert


@_as_it_is
def allreduce(
    tensor: Any, op: Op = "sum", name: str | None = None, *, comm: Communicator | None = None
) -> tf.Tensor:
    """Combine the ranks' tensors, element by element; all ranks get the same bits.

    tensor   of the same shape and type on all ranks
    op       "sum", "average", "min", "max", "product", "bit_and", "bit_or" or "bit_xor". Integers
             wrap; their average truncates
    name     the name that matches the operation; None: see the module's docstring
    comm     a communicator of `split` or `subset`: the ranks that take part; None: all

    All ranks call it. Sums and averages have a gradient, which is the gradient of the sum of all
    ranks' losses. Raises
        ddl_core.errors.InvalidArgument  (a ValueError) for an unknown op, and for values that are
                                         not dense tensors
        ddl_core.errors.Unsupported      (here also a TypeError) for an element type that the op
                                         does not support
        ddl_core.errors.InvalidState     before init

    When the operation runs, it raises tf.errors.FailedPreconditionError if ranks call different
    operations, UnavailableError if a rank dies, AbortedError and DeadlineExceededError.
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
    """Combine several tensors as `allreduce` does, in one operation. Small tensors are sent
    together.

    tensors  in the same order on all ranks; shapes and types may differ within the list

    All ranks call it. Otherwise like `allreduce`.
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
    """Return the root's tensor on all ranks.

    tensor   of the same shape and type on all ranks. Values matter on the root only
    root     the rank whose values all ranks get, a rank within comm

    All ranks call it. Its gradient on the root is the sum of all ranks' gradients, elsewhere 0.
    Raises like `allreduce`, and InvalidArgument for a root that is not a rank.
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
    """Concatenate the ranks' tensors along the first dimension.

    tensor   of the same type on all ranks, and of the same shape except for the first dimension
    rows     the first dimension's size on each rank; None: the ranks exchange it, which costs time.
             In functions compiled by XLA None means that all ranks have as many rows as this one

    Returns a tensor of shape (sum of rows, ...), or of shape (size,) for scalars. All ranks call
    it, and either all or none with rows. Has a gradient. Raises like `allreduce`.
    """
    number, rank, size = members(comm)
    given = [] if rows is None else adapter.check_rows("rows", rows, size)
    tensor = checked("allgather", tensor)
    if given and tensor.shape.rank and tensor.shape[0] not in (None, given[rank]):
        raise InvalidArgument(
            f"rows is {given[rank]} for this rank, but its tensor has {tensor.shape[0]} rows"
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
    """Return this rank's part of the result of `allreduce`. Parts are along the first dimension.

    tensor   of the same shape and type on all ranks
    op       as for `allreduce`
    rows     the number of rows for each rank; pass the same list on all ranks. None means equal
             parts, and the first dimension must then be a multiple of size

    All ranks call it. Sums and averages have a gradient. Raises like `allreduce`, and
    InvalidArgument, or tf.errors.InvalidArgumentError in a graph that does not know the shape, if
    the tensor cannot be divided into these parts.
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
    """Send each rank its part of `tensor`. Return the received parts, concatenated in the order of
    ranks. Parts are along the first dimension.

    tensor     of the same type on all ranks, and of the same shape except for the first dimension
    sent_rows  the size of each rank's part, as numbers or as a tensor; None: equal parts

    With `sent_rows`, also returns the number of rows received from each rank, an int64 tensor of
    shape (size,). All ranks call it, and either all or none with sent_rows. In functions compiled
    by XLA, parts must be equal. Has a gradient. Raises like `reduce_scatter`.
    """
    number, _, size = members(comm)
    tensor = checked("alltoall", tensor)
    if sent_rows is None:
        _part(tensor, size)
        sent = tf.constant([], tf.int64)
    elif tf.is_tensor(sent_rows):
        if not sent_rows.dtype.is_integer:
            raise InvalidArgument(
                f"sent_rows is a tensor of {sent_rows.dtype.name}; must contain integers"
            )
        sent = tf.cast(sent_rows, tf.int64)
    else:
        given = adapter.check_rows("sent_rows", sent_rows, size)
        if tensor.shape.rank and tensor.shape[0] not in (None, sum(given)):
            raise InvalidArgument(
                f"sent_rows has the sum {sum(given)}, but the tensor has {tensor.shape[0]} rows"
            )
        sent = tf.constant(given, tf.int64)
    result, received = _call("alltoall", name, number, tensor, sent)
    if sent_rows is None:
        return _shaped(result, tensor.shape)
    return result, _shaped(received, [size])


@_as_it_is
def barrier(name: str | None = None, *, comm: Communicator | None = None) -> Any:
    """Wait until all ranks have called this. In a graph, it completes after all ranks have reached
    it."""
    number, *_ = members(comm)
    return _call("barrier", name, number)


def in_xla() -> bool:
    """Return True if XLA will compile the function that is being traced."""
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
    """An error: the operation does not support the element type."""


def checked(what: str, value: Any, argument: str = "tensor", op: Any = None) -> tf.Tensor:
    """Return the `argument` of the operation `what`, converted to a tensor. Raises InvalidArgument
    and UnsupportedType, even while a graph is traced."""
    reduces = what in _REDUCING
    if reduces:
        adapter.check_op(op)
    kind = type(value).__name__
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        raise InvalidArgument(
            f"{argument} is a {kind}, but {what} takes dense tensors; convert it first"
        )
    try:
        tensor = tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            f"{argument} is a {kind}, which cannot be converted to a tensor: {error}"
        ) from error
    dtype = tensor.dtype.name
    if dtype not in _TYPES or (reduces and not adapter.has_op(dtype, op)):
        by = f" by {op}" if reduces else ""
        raise UnsupportedType(
            f"{argument} has elements of {dtype}, which {what}{by} does not support"
        )
    return tensor


def _part(tensor: tf.Tensor, size: int) -> int | None:
    """Return an equal part of the first dimension, or None if the dimension is unknown."""
    if tensor.shape.rank is None or (tensor.shape.rank and tensor.shape[0] is None):
        return None
    return adapter.equal_rows("tensor", tensor.shape.as_list(), size)


def _shaped(tensor: tf.Tensor, shape: Any) -> tf.Tensor:
    if not tf.executing_eagerly():
        tensor.set_shape(shape)
    return tensor


@contextmanager
def _scope(name: str | None, what: str, inputs: Sequence[Any]) -> Iterator[str]:
    """Open a name scope for the graph's node, with only the characters that TensorFlow allows."""
    if not (name is None or isinstance(name, str)):
        raise InvalidArgument(f"name is {name!r}; must be a str")
    outer: Any = nullcontext()
    if name is None:
        name = f"ddl_{what}"
        graph: Any = tf.compat.v1.get_default_graph()
        if not (tf.executing_eagerly() or graph.building_function):
            # Ranks may build a graph of TensorFlow 1 in any order, for example in the order of a
            # set.
            ends = [each.name for each in (*inputs[:1], *inputs[-1:]) if tf.is_tensor(each)]
            name, outer = "_".join([name, *ends]), tf.compat.v1.name_scope(None)
    with outer, tf.name_scope(re.sub(r"^[^A-Za-z0-9.]|[^\w.\-/]", "_", name)) as scope:
        yield scope
