# SPDX-License-Identifier: Apache-2.0
"""Horovod's operations on tensors of all ranks, or of a process set: eagerly, in tf.function, and
in TensorFlow's sessions. Functions that XLA compiles have all-reduces over all ranks only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import ddl_tensorflow
from ddl_horovod import common
from ddl_horovod.common import Adasum, Average, Reduction, Sum
from ddl_horovod.executor import JOIN, Call, Perform
from ddl_horovod.tensorflow import performers
from ddl_horovod.tensorflow.compression import Compression
from ddl_horovod.tensorflow.performers import Array
from ddl_horovod.tensorflow.world import global_process_set
from ddl_horovod.world import ProcessSet
from ddl_tensorflow.collectives import in_xla

How = tuple[Reduction, float, float]  # and the factors before and after
_as_it_is = tf.autograph.experimental.do_not_convert  # what is traced here needs no AutoGraph


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
    """Combine the members' tensors, by default to their average. Of tf.IndexedSlices the members'
    slices follow one another. Has a gradient: that of the members' results, combined likewise.
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
    """`allreduce` of several tensors as one operation."""
    how = _how(average, op, prescale_factor, postscale_factor, process_set)
    results: list[Any] = list(tensors)
    dense = {}
    for number, tensor in enumerate(results):
        if isinstance(tensor, tf.IndexedSlices):
            results[number] = _slices(tensor, how, process_set)
        else:
            dense[number] = compression.compress(tf.convert_to_tensor(tensor))
    if dense:
        reduced = _allreduce([sent for sent, _ in dense.values()], name, how, process_set)
        for (number, (_, context)), tensor in zip(dense.items(), reduced, strict=True):
            results[number] = compression.decompress(tensor, context)
    return results


@_as_it_is
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """The members' tensors one after the other along the first dimension, in which they may
    differ. Has a gradient: this member's rows of the members' average."""
    return _allgather([tensor], name, process_set)[0]


@_as_it_is
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """`allgather` of several tensors as one operation."""
    return _allgather(tensors, name, process_set)


@_as_it_is
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """The tensor of the rank root_rank, which is a number among all ranks. Has a gradient: on the
    root the members' average, elsewhere 0."""
    members = process_set.members()
    if root_rank not in members:
        raise ValueError(f"root_rank: {root_rank} is no member of {members}")

    def build(arrays: list[Array]) -> tuple[Call, Perform]:
        perform = performers.broadcast(arrays[0], members.index(root_rank))
        return _called("broadcast", arrays, [root_rank]), perform

    @tf.custom_gradient
    def moved(own: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            total = allreduce(upstream, op=Average, process_set=process_set)
            return total if members[process_set.rank()] == root_rank else total * 0

        return _run(process_set, name, build, [own], [own])[0], gradient

    return moved(tf.convert_to_tensor(tensor))


@_as_it_is
def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Give all members the root's values of variables. Returns the variables, or in a graph of
    TensorFlow 1 the operations that do so."""
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
    """Give each member its rows of the tensor, and get theirs, one after the other.

    splits: the rows of each member; None: equally many. If given, the rows received from each are
    returned as well. Has a gradient, which travels back.
    """

    def build(arrays: list[Array]) -> tuple[Call, Perform]:
        rows = _rows(arrays[0], arrays[1].tolist(), process_set.size())
        call = _called("alltoall", arrays[:1], [], True, rows)
        return call, performers.alltoall(arrays[0], process_set.rank())

    @tf.custom_gradient
    def moved(own: tf.Tensor, sent: tf.Tensor) -> Any:
        shape = tf.TensorShape([None, *own.shape[1:]])
        outputs = tf.TensorSpec(shape, own.dtype), tf.TensorSpec([process_set.size()], tf.int32)
        result, received = _run(process_set, name, build, [own, sent], outputs)

        def gradient(upstream: tf.Tensor, _: Any = None) -> Any:
            back, _ = alltoall(upstream, received, process_set=process_set)
            unsent = tf.shape(own)[0] - tf.shape(back)[0]
            return tf.pad(back, [[0, unsent], *[[0, 0]] * (len(own.shape) - 1)]), None

        return (result, received), gradient

    given = tf.constant([], tf.int64) if splits is None else tf.cast(splits, tf.int64)
    result, received = moved(tf.convert_to_tensor(tensor), given)
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
    """This member's rows of what `allreduce` would give, by Average or Sum; where they cannot be
    divided equally, the first members have one more. Has Horovod's gradient: the members' rows,
    for Sum times their number."""
    how = op, float(prescale_factor), float(postscale_factor)
    sent, context = compression.compress(tf.convert_to_tensor(tensor))
    return compression.decompress(_reducescatter([sent], name, how, process_set)[0], context)


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
    """`reducescatter` of several tensors as one operation."""
    if not tensors:
        return []
    how = op, float(prescale_factor), float(postscale_factor)
    pairs = [compression.compress(tf.convert_to_tensor(each)) for each in tensors]
    results = _reducescatter([sent for sent, _ in pairs], None, how, process_set)
    return [compression.decompress(r, c) for r, (_, c) in zip(results, pairs, strict=True)]


def join() -> tf.Tensor:
    """Take part with zeros in what the other ranks call, until all ranks have joined; allreduce by
    Sum and Average, allgather (with no rows) and barrier. Returns the rank that joined last."""
    executor = global_process_set.executor()
    call = Call(JOIN, executor.name(None))
    return tf.constant(executor.submit(call, performers.barrier).result(), tf.int32)


def run_arrays(
    process_set: ProcessSet,
    name: str | None,
    build: Callable[[list[Array]], tuple[Call, Perform]],
    arrays: list[Array],
) -> list[Array]:
    """Perform an operation on arrays, and wait for its results."""
    executor = process_set.executor()
    call, perform = build(arrays)
    named = Call(**{**vars(call), "name": executor.name(name)})
    results: list[Array] = executor.submit(named, perform).result()
    return results


# ---- one operation ----


def _run(
    process_set: ProcessSet,
    name: str | None,
    build: Callable[[list[Array]], tuple[Call, Perform]],
    tensors: Sequence[tf.Tensor],
    outputs: Sequence[Any],
) -> list[tf.Tensor]:
    """Perform an operation now, or in a graph whenever it runs. outputs: types and shapes."""
    process_set.rank()
    if tf.executing_eagerly():
        arrays = [np.ascontiguousarray(each.numpy()).reshape(each.shape) for each in tensors]
        return [tf.convert_to_tensor(r) for r in run_arrays(process_set, name, build, arrays)]
    if in_xla():
        raise NotImplementedError(
            "functions compiled by XLA have only hvd.allreduce over all ranks by Sum or Average;"
            " give jit_compile=False"
        )

    def now(*arrays: Array) -> list[Array]:
        own = [np.ascontiguousarray(each).reshape(np.shape(each)) for each in arrays]
        return run_arrays(process_set, name, build, own)

    results = tf.numpy_function(now, list(tensors), [each.dtype for each in outputs])
    for result, output in zip(results, outputs, strict=True):
        result.set_shape(output.shape)
    return list(results)


def _called(
    kind: str,
    arrays: list[Array],
    equal: list[Any],
    ragged: bool = False,
    splits: Sequence[int] = (),
) -> Call:
    dtypes, shapes = [a.dtype.name for a in arrays], [list(a.shape) for a in arrays]
    return Call(kind, "", dtypes, shapes, equal, ragged, list(splits))


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
            f"op: Adasum needs a power of two of members, not {process_set.size()}"
        )
    return chosen, float(prescale), float(postscale)


def _allreduce(
    tensors: Sequence[tf.Tensor], name: str | None, how: How, process_set: ProcessSet
) -> list[tf.Tensor]:
    if in_xla() and process_set is global_process_set and how[0] in (Average, Sum):
        return _native(tensors, how)

    def build(arrays: list[Array]) -> tuple[Call, Perform]:
        settings = how[0].name, *how[1:]
        return _called("allreduce", arrays, list(settings)), performers.allreduce(arrays, *settings)

    @tf.custom_gradient
    def combined(*own: tf.Tensor) -> Any:
        def gradient(*upstream: tf.Tensor) -> Any:
            return _allreduce(upstream, None, how, process_set)

        return tuple(_run(process_set, name, build, own, own)), gradient

    return list(combined(*tensors))


def _native(tensors: Sequence[tf.Tensor], how: How) -> list[tf.Tensor]:
    """By the operations of ddl_tensorflow, which XLA compiles."""
    op, prescale, postscale = how
    sent = [each if prescale == 1 else each * prescale for each in tensors]
    results = ddl_tensorflow.grouped_allreduce(sent, op.name.lower())
    return [each if postscale == 1 else each * postscale for each in results]


def _allgather(
    tensors: Sequence[Any], name: str | None, process_set: ProcessSet
) -> list[tf.Tensor]:
    def build(arrays: list[Array]) -> tuple[Call, Perform]:
        return _called("allgather", arrays, [], True), performers.allgather(arrays)

    @tf.custom_gradient
    def gathered(*own: tf.Tensor) -> Any:
        outputs = [tf.TensorSpec([None, *each.shape[1:]], each.dtype) for each in own]

        def gradient(*upstream: tf.Tensor) -> Any:
            counts = _allgather([tf.shape(each)[:1] for each in own], None, process_set)
            totals = grouped_allreduce(upstream, op=Average, process_set=process_set)
            number = process_set.rank()
            return [
                tf.split(total, rows, num=process_set.size())[number]
                for total, rows in zip(totals, counts, strict=True)
            ]

        return tuple(_run(process_set, name, build, own, outputs)), gradient

    rows = [tf.convert_to_tensor(each) for each in tensors]
    if not rows:
        return []
    return list(gathered(*[r if r.shape.rank != 0 else tf.reshape(r, [1]) for r in rows]))


def _reducescatter(
    tensors: Sequence[tf.Tensor], name: str | None, how: How, process_set: ProcessSet
) -> list[tf.Tensor]:
    op, prescale, postscale = how
    if op not in (Average, Sum):
        raise ValueError(f"op: {op.name} is neither Average nor Sum")
    if any(each.shape.rank == 0 for each in tensors):
        raise ValueError("tensor: a scalar has no rows")

    def build(arrays: list[Array]) -> tuple[Call, Perform]:
        settings = op.name, prescale, postscale
        call = _called("reducescatter", arrays, list(settings))
        return call, performers.reducescatter(arrays, *settings)

    @tf.custom_gradient
    def scattered(*own: tf.Tensor) -> Any:
        outputs = [tf.TensorSpec([None, *each.shape[1:]], each.dtype) for each in own]
        factor = prescale * postscale * (process_set.size() if op == Sum else 1)

        def gradient(*upstream: tf.Tensor) -> Any:
            return _allgather([each * factor for each in upstream], None, process_set)

        return tuple(_run(process_set, name, build, own, outputs)), gradient

    return list(scattered(*tensors))


def _slices(slices: tf.IndexedSlices, how: How, process_set: ProcessSet) -> tf.IndexedSlices:
    op, prescale, postscale = how
    if op not in (Average, Sum):
        raise NotImplementedError(
            f"op: {op.name} does not combine tf.IndexedSlices; give sparse_as_dense=True"
        )
    if (prescale, postscale) != (1, 1):
        raise NotImplementedError("prescale_factor, postscale_factor: not for tf.IndexedSlices")
    values, indices = _allgather([slices.values, slices.indices], None, process_set)
    if op == Average:
        values = values / tf.cast(process_set.size(), values.dtype)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def _rows(array: Array, splits: list[int], size: int) -> list[int]:
    count = len(array) if array.ndim else 0
    if not splits:
        if count % size:
            raise ValueError(f"tensor: {count} rows cannot be divided equally among {size} members")
        return [count // size] * size
    if len(splits) != size or min(splits) < 0 or sum(splits) > count:
        raise ValueError(f"splits: {splits} do not divide {count} rows among {size} members")
    return splits


def _assigned(variable: Any, root: int, name: str | None, process_set: ProcessSet) -> Any:
    variable.assign(broadcast(variable, root, name, False, process_set))
    return variable
