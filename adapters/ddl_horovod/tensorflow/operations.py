# SPDX-License-Identifier: Apache-2.0
"""Horovod's operations over all ranks or a process set: eager, in tf.function, and in sessions.

Functions that XLA compiles support only all-reduces over all ranks. Eager operations match by their
order. The operations of a graph match by name, because TensorFlow starts them in any order. The
name is the given one, else the operation's number in a tf.function, or the names of its tensors in
a TensorFlow 1 graph.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import tensorflow as tf

import ddl_tensorflow
from ddl_horovod import common
from ddl_horovod.common import Adasum, Average, Reduction, Sum
from ddl_horovod.executor import JOIN, MemberCall, Perform
from ddl_horovod.tensorflow import performers
from ddl_horovod.tensorflow.compression import Compression
from ddl_horovod.tensorflow.performers import Array
from ddl_horovod.tensorflow.world import ArgumentRefused, global_process_set
from ddl_horovod.world import ProcessSet
from ddl_tensorflow import calls as python_calls
from ddl_tensorflow.collectives import in_xla
from ddl_tensorflow.naming import match

if TYPE_CHECKING:
    from ddl_core.base.names import Op

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "reducescatter",
]

How = tuple[Reduction, float, float]  # the reduction, prescale_factor, postscale_factor
Named = tuple[str | None, bool]  # the name given, and whether to ignore the graph's scope
_UNNAMED: Named = (None, False)
_AVERAGE: How = (Average, 1.0, 1.0)
_as_it_is = tf.autograph.experimental.do_not_convert  # the functions here need no AutoGraph


@_as_it_is
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """Combine the members' tensors, by default to their average. tf.IndexedSlices are concatenated.
    The operation is differentiable: its gradient combines the members' gradients in the same way.
    The devices are ignored."""
    scales = prescale_factor, postscale_factor
    options = compression, op, *scales, process_set, ignore_name_scope, name
    return grouped_allreduce([tensor], average, device_dense, device_sparse, *options)[0]


@_as_it_is
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """Perform `allreduce` on several tensors as one operation."""
    how = _how(average, op, prescale_factor, postscale_factor, process_set)
    named = name, ignore_name_scope
    results: list[Any] = list(tensors)
    dense = {}
    for number, tensor in enumerate(results):
        if isinstance(tensor, tf.IndexedSlices):
            results[number] = _slices(tensor, how, process_set)
        else:
            dense[number] = compression.compress(tf.convert_to_tensor(tensor))
    if dense:
        reduced = _allreduce([sent for sent, _ in dense.values()], named, how, process_set)
        for (number, (_, context)), tensor in zip(dense.items(), reduced, strict=True):
            results[number] = compression.decompress(tensor, context)
    return results


@_as_it_is
def packed_allreduce(
    flat: tf.Tensor, residual: tf.Tensor, op: Reduction, wire: str, process_set: ProcessSet
) -> list[tf.Tensor]:
    """Combine flat tensors of float32 in this wire format. Return the result and the new
    residual."""
    operation = Operation("allreduce_packed", (op.name, wire), process_set)
    matched = _matched("allreduce_packed", _UNNAMED, [flat], process_set)
    return _run(operation, matched, [flat, residual], [flat, residual])


@_as_it_is
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Concatenate the members' tensors along the first dimension, whose sizes may differ. The
    gradient is this member's rows of the members' averaged gradients."""
    return _allgather([tensor], (name, ignore_name_scope), process_set)[0]


@_as_it_is
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Perform `allgather` on several tensors as one operation."""
    return _allgather(tensors, (name, ignore_name_scope), process_set)


@_as_it_is
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Return the tensor of the global rank root_rank. The gradient is the members' averaged
    gradient on the root, and 0 elsewhere."""
    members = process_set.members()
    if root_rank not in members:
        raise ValueError(f"root_rank is {root_rank}; must be one of the members {members}")

    operation = Operation("broadcast", (root_rank,), process_set)
    given = tf.convert_to_tensor(tensor)
    matched = _matched("broadcast", (name, ignore_name_scope), [given], process_set)

    @tf.custom_gradient
    def moved(own: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            (total,) = _allreduce([upstream], _of_gradient(matched), _AVERAGE, process_set)
            return total if members[process_set.rank()] == root_rank else total * 0

        return _run(operation, matched, [own], [own])[0], gradient

    return moved(given)


@_as_it_is
def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Assign the root's values to the variables of all members. Return the variables, or the
    assignments in a TensorFlow 1 graph."""
    return [
        each.assign(broadcast(each, root_rank, name and f"{name}.{number}", False, process_set))
        if tf.inside_function() or not tf.executing_eagerly()
        else _assigned(each, root_rank, name and f"{name}.{number}", process_set)
        for number, each in enumerate(variables)
    ]


@_as_it_is
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send each member some rows of the tensor, and concatenate the rows received.

    splits is the number of rows for each member; None divides the rows equally. If splits is given,
    also return the number of rows received from each member. The operation is differentiable.
    """

    sent = tf.constant([], tf.int64) if splits is None else tf.convert_to_tensor(splits)
    if not sent.dtype.is_integer:
        raise ArgumentRefused(
            None, None, f"splits has the type {sent.dtype.name}; its elements must be integers"
        )
    named = name, ignore_name_scope
    result, received = _alltoall(tf.convert_to_tensor(tensor), sent, named, process_set)
    return result if splits is None else (result, received)


@_as_it_is
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: Reduction = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Return this member's rows of the `allreduce` result. op must be Average or Sum. If the rows
    cannot be divided equally, the first members get one more. The gradient is the same as in
    Horovod: the members' concatenated gradients, multiplied by the number of members if op is
    Sum."""
    how = op, float(prescale_factor), float(postscale_factor)
    sent, context = compression.compress(tf.convert_to_tensor(tensor))
    named = name, ignore_name_scope
    return compression.decompress(_reducescatter([sent], named, how, process_set)[0], context)


@_as_it_is
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: Reduction = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[tf.Tensor]:
    """Perform `reducescatter` on several tensors as one operation."""
    if not tensors:
        return []
    how = op, float(prescale_factor), float(postscale_factor)
    pairs = [compression.compress(tf.convert_to_tensor(each)) for each in tensors]
    results = _reducescatter([sent for sent, _ in pairs], _UNNAMED, how, process_set)
    return [compression.decompress(r, c) for r, (_, c) in zip(results, pairs, strict=True)]


def join() -> tf.Tensor:
    """Take part with zeros in the other ranks' operations until all ranks have joined. Return the
    rank that joined last. The others may call allreduce (Sum, Average, Adasum), allgather (to which
    this rank adds no rows) and barrier."""
    executor = global_process_set.executor()
    call = MemberCall(JOIN, executor.name(None))
    return tf.constant(executor.submit(call, performers.barrier).result(), tf.int32)


def submit(
    process_set: ProcessSet, name: str | None, call: MemberCall, perform: Perform
) -> Future[Any]:
    """Start an eager operation. It matches the other members' calls by order."""
    executor = process_set.executor()
    return executor.submit(replace(call, name=executor.name(name)), perform)


# ---- one operation ----


class Operation(NamedTuple):
    """An operation without its tensors.

    equal  arguments that must be equal on all members: the reduction and the factors, or the root
    """

    kind: str
    equal: tuple[Any, ...]
    process_set: ProcessSet

    def prepare(self, arrays: list[Array]) -> tuple[MemberCall, Perform]:
        """Return the call, without its name, and the function that performs it. Raises
        ArgumentRefused if the splits are invalid."""
        kind, equal, process_set = self
        own = [np.ascontiguousarray(each).reshape(np.shape(each)) for each in arrays]
        splits: list[int] = []
        if kind == "alltoall":
            splits = _rows(own[0], own.pop().tolist(), process_set.size())
            perform = performers.alltoall(own[0], process_set.rank())
        elif kind == "broadcast":
            perform = performers.broadcast(own[0], process_set.members().index(equal[0]))
        elif kind == "allgather":
            perform = performers.allgather(own)
        else:
            perform = getattr(performers, kind)(own, *equal)
        dtypes = [each.dtype.name for each in own]
        shapes: list[Any] = [list(each.shape) for each in own]
        ragged = kind in ("allgather", "alltoall")
        return MemberCall(kind, "", dtypes, shapes, list(equal), ragged, splits), perform

    def __call__(self, name: str, arrays: list[Array]) -> Future[list[Array]]:
        """Start an operation of a graph. It matches the other members' calls by name."""
        call, perform = self.prepare(arrays)
        return self.process_set.executor().submit(replace(call, name=name, graph=True), perform)


def _run(
    operation: Operation,
    name: str | None,
    tensors: Sequence[tf.Tensor],
    outputs: Sequence[Any],
) -> list[tf.Tensor]:
    """Perform an eager operation, or add it to the graph. `outputs` have the types and shapes of
    the results."""
    process_set = operation.process_set
    process_set.rank()
    if tf.executing_eagerly():
        call, perform = operation.prepare([each.numpy() for each in tensors])
        results = submit(process_set, name, call, perform).result()
        return [tf.convert_to_tensor(each) for each in results]
    if in_xla():
        raise NotImplementedError(
            "functions compiled by XLA support only hvd.allreduce over all ranks with Sum or"
            " Average: set jit_compile=False"
        )
    assert name is not None
    return python_calls.call(cast(Any, operation), name, tensors, outputs)


def _of_gradient(matched: str | None) -> Named:
    """Return the name of an operation's gradient. Eager operations have none."""
    return (None if matched is None or tf.executing_eagerly() else f"{matched}_gradient", True)


def _matched(
    kind: str, named: Named, tensors: Sequence[tf.Tensor], process_set: ProcessSet
) -> str | None:
    """Return the name by which an operation on these tensors matches, unique in its graph."""
    name, ignores_scope = named
    if tf.executing_eagerly():
        return name
    graph: Any = tf.compat.v1.get_default_graph()
    if name is not None:
        name = f"{kind}_{name}"
    elif graph.building_function:
        # The order is the same on all ranks, but tensor names depend on a rank's earlier work.
        name, ignores_scope = kind, True
    else:
        # Ranks may build a graph in different orders, such as the order of a set of variables.
        name, ignores_scope = "_".join([kind, tensors[0].name, tensors[-1].name]), True
    outer = tf.compat.v1.name_scope(None) if ignores_scope else nullcontext()
    with outer, tf.name_scope(re.sub(r"[^\w.\-]", "_", name)) as scope:
        return match(None, scope, process_set.process_set_id or 0)


def _how(
    average: bool | None,
    op: Reduction | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> How:
    chosen = common.reduction(average, op)
    if chosen == Adasum and not common.check_num_rank_power_of_2(process_set.size()):
        raise NotImplementedError(
            f"op is Adasum, but {process_set.size()} members call it; must be a power of two"
        )
    return chosen, float(prescale), float(postscale)


def _allreduce(
    tensors: Sequence[tf.Tensor], named: Named, how: How, process_set: ProcessSet
) -> list[tf.Tensor]:
    if in_xla() and process_set is global_process_set and how[0] in (Average, Sum):
        return _native(tensors, how)
    operation = Operation("allreduce", (how[0].name, *how[1:]), process_set)
    matched = _matched("allreduce", named, tensors, process_set)

    @tf.custom_gradient
    def combined(*own: tf.Tensor) -> Any:
        def gradient(*upstream: tf.Tensor) -> Any:
            return _allreduce(upstream, _of_gradient(matched), how, process_set)

        return tuple(_run(operation, matched, own, own)), gradient

    return list(combined(*tensors))


def _native(tensors: Sequence[tf.Tensor], how: How) -> list[tf.Tensor]:
    """Combine tensors with ddl_tensorflow's operations, which XLA can compile."""
    op, prescale, postscale = how
    sent = [_scaled(each, prescale) for each in tensors]
    results = ddl_tensorflow.grouped_allreduce(sent, cast("Op", op.name.lower()))
    return [_scaled(each, postscale) for each in results]


def _scaled(tensor: tf.Tensor, factor: float) -> tf.Tensor:
    """Multiply a tensor by a factor that may be outside the range of the tensor's type."""
    if factor == 1:
        return tensor
    wide = tf.float64 if tensor.dtype.is_integer else tensor.dtype
    if wide in (tf.float16, tf.bfloat16):
        wide = tf.float32
    return tf.cast(tf.cast(tensor, wide) * factor, tensor.dtype)


def _allgather(tensors: Sequence[Any], named: Named, process_set: ProcessSet) -> list[tf.Tensor]:
    rows = [tf.convert_to_tensor(each) for each in tensors]
    if not rows:
        return []
    operation = Operation("allgather", (), process_set)
    matched = _matched("allgather", named, rows, process_set)

    @tf.custom_gradient
    def gathered(*own: tf.Tensor) -> Any:
        outputs = [tf.TensorSpec([None, *each.shape[1:]], each.dtype) for each in own]

        def gradient(*upstream: tf.Tensor) -> Any:
            named = _of_gradient(matched)
            counts = _allgather([tf.shape(each)[:1] for each in own], named, process_set)
            totals = _allreduce(upstream, named, _AVERAGE, process_set)
            number = process_set.rank()
            return [
                tf.split(total, rows, num=process_set.size())[number]
                for total, rows in zip(totals, counts, strict=True)
            ]

        return tuple(_run(operation, matched, own, outputs)), gradient

    return list(gathered(*[r if r.shape.rank != 0 else tf.reshape(r, [1]) for r in rows]))


def _alltoall(
    tensor: tf.Tensor, splits: tf.Tensor, named: Named, process_set: ProcessSet
) -> tuple[tf.Tensor, tf.Tensor]:
    operation = Operation("alltoall", (), process_set)
    matched = _matched("alltoall", named, [tensor], process_set)

    @tf.custom_gradient
    def moved(own: tf.Tensor, sent: tf.Tensor) -> Any:
        shape = tf.TensorShape([None, *own.shape[1:]])
        outputs = tf.TensorSpec(shape, own.dtype), tf.TensorSpec([process_set.size()], tf.int32)
        result, received = _run(operation, matched, [own, sent], outputs)

        def gradient(upstream: tf.Tensor, _: Any = None) -> Any:
            back, _ = _alltoall(upstream, received, _of_gradient(matched), process_set)
            unsent = tf.shape(own)[0] - tf.shape(back)[0]
            return tf.pad(back, [[0, unsent], *[[0, 0]] * (len(own.shape) - 1)]), None

        return (result, received), gradient

    result, received = moved(tensor, tf.cast(splits, tf.int64))
    return result, received


def _reducescatter(
    tensors: Sequence[tf.Tensor], named: Named, how: How, process_set: ProcessSet
) -> list[tf.Tensor]:
    op, prescale, postscale = how
    if op not in (Average, Sum):
        raise ValueError(f"op is {op.name}; must be Average or Sum")
    if any(each.shape.rank == 0 for each in tensors):
        raise ArgumentRefused(None, None, "tensor is a scalar; must have at least one dimension")
    operation = Operation("reducescatter", (op.name, prescale, postscale), process_set)
    matched = _matched("reducescatter", named, tensors, process_set)

    @tf.custom_gradient
    def scattered(*own: tf.Tensor) -> Any:
        outputs = [tf.TensorSpec([None, *each.shape[1:]], each.dtype) for each in own]
        factor = prescale * postscale * (process_set.size() if op == Sum else 1)

        def gradient(*upstream: tf.Tensor) -> Any:
            scaled = [_scaled(each, factor) for each in upstream]
            return _allgather(scaled, _of_gradient(matched), process_set)

        return tuple(_run(operation, matched, own, outputs)), gradient

    return list(scattered(*tensors))


def _slices(slices: tf.IndexedSlices, how: How, process_set: ProcessSet) -> tf.IndexedSlices:
    op, prescale, postscale = how
    if op not in (Average, Sum):
        raise NotImplementedError(
            f"op is {op.name}; must be Average or Sum for tf.IndexedSlices. For another op, pass a"
            " dense tensor: tf.convert_to_tensor(slices)"
        )
    if (prescale, postscale) != (1, 1):
        raise NotImplementedError(
            "prescale_factor and postscale_factor are not supported for tf.IndexedSlices"
        )
    values, indices = _allgather([slices.values, slices.indices], _UNNAMED, process_set)
    if op == Average:
        values = values / tf.cast(process_set.size(), values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def _rows(array: Array, splits: list[int], size: int) -> list[int]:
    count = len(array) if array.ndim else 0
    if not splits:
        if count % size:
            text = f"tensor: {count} rows cannot be divided equally among {size} members"
            raise ArgumentRefused(None, None, text)
        return [count // size] * size
    if len(splits) != size or min(splits) < 0 or sum(splits) > count:
        text = f"splits: {splits} do not divide {count} rows among {size} members"
        raise ArgumentRefused(None, None, text)
    return splits


def _assigned(variable: Any, root: int, name: str | None, process_set: ProcessSet) -> Any:
    variable.assign(broadcast(variable, root, name, False, process_set))
    return variable
