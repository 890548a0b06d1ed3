# SPDX-License-Identifier: Apache-2.0
"""Support for training loops in TensorFlow: gradients, variables and metrics of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import tensorflow as tf

from ddl_core import adapter
from ddl_core.adapter_objects import check, packed, unpacked
from ddl_core.errors import InvalidArgument
from ddl_tensorflow.collectives import (
    allgather,
    allreduce,
    broadcast,
    checked,
    grouped_allreduce,
)
from ddl_tensorflow.communicators import Communicator, members
from ddl_tensorflow.packing import WIRES, allreduce_packed

if TYPE_CHECKING:
    from ddl_core.base.names import AnyCompression, GradientOp

_COMPRESSED = {"f16": tf.float16, "bf16": tf.bfloat16}

Function = TypeVar("Function", bound=Callable[..., Any])
# AutoGraph is not needed for functions that are traced here.
_as_it_is: Callable[[Function], Function] = tf.autograph.experimental.do_not_convert


@_as_it_is
def allreduce_gradients(
    gradients: Sequence[Any],
    *,
    op: GradientOp = "average",
    compression: AnyCompression | None = None,
    residual: tf.Variable | None = None,
    sparse_as_dense: bool = False,
    name: str | None = None,
    comm: Communicator | None = None,
) -> list[Any]:
    """Average or sum all ranks' gradients, in one operation.

    gradients        tensors, tf.IndexedSlices, or None for a missing gradient, of the same kinds on
                     all ranks
    op               "average" or "sum"
    compression      "f16" or "bf16": gradients of float32 and float64 are sent in that type, which
                     halves or quarters the bytes and costs precision. "int8" or "int4": gradients
                     of float32 are sent between hosts in a quarter or an eighth of the bytes, see
                     docs/wire.md; not in functions that XLA compiles
    residual         for "int8" and "int4": a variable of `gradient_residual` for the rounding
                     errors, which are added to the next gradients
    sparse_as_dense  convert IndexedSlices to tensors; otherwise the ranks' slices are concatenated
                     by an all-gather each, and repeated indices add up when they are applied
    comm             a communicator of `split` or `subset`: the ranks that take part; None: all

    All ranks call it. Raises InvalidArgument for arguments out of range, and like `allreduce`.
    """
    adapter.check_gradients(op, compression, WIRES)
    members(comm)  # raises InvalidState before init
    result = list(gradients)
    dense: dict[int, tf.Tensor] = {}
    for index, gradient in enumerate(result):
        if isinstance(gradient, tf.IndexedSlices):
            if sparse_as_dense:
                dense[index] = tf.convert_to_tensor(gradient)
            else:
                result[index] = _gather_slices(gradient, op, name and f"{name}/{index}", comm)
        elif gradient is not None:
            dense[index] = checked("grouped_allreduce", gradient, f"gradients[{index}]", op)
    if compression in WIRES:
        packed = {i: each for i, each in dense.items() if each.dtype == tf.float32}
        dense = {i: each for i, each in dense.items() if i not in packed}
        own = name and f"{name}/packed"
        how = (residual, op, str(compression), own, comm)
        sums = allreduce_packed(list(packed.values()), *how) if packed else []
        for index, sum_ in zip(packed, sums, strict=True):
            result[index] = sum_
    sent = [_narrowed(each, compression) for each in dense.values()]
    reduced = grouped_allreduce(sent, op, name, comm=comm)
    for (index, gradient), sum_ in zip(dense.items(), reduced, strict=True):
        result[index] = tf.cast(sum_, gradient.dtype)
    return result


class DistributedGradientTape:
    """A tf.GradientTape whose `gradient` returns the gradients of all ranks.

        with ddl.DistributedGradientTape() as tape:
            loss = ...
        gradients = tape.gradient(loss, model.trainable_variables)

    tape      a tape that has recorded already; None: a new one, with `persistent` and
              `watch_accessed_variables` as for tf.GradientTape
    others    as for `allreduce_gradients`

    Only `gradient` communicates: jacobians are this rank's own.
    """

    def __init__(
        self,
        tape: tf.GradientTape | None = None,
        *,
        persistent: bool = False,
        watch_accessed_variables: bool = True,
        op: GradientOp = "average",
        compression: AnyCompression | None = None,
        residual: tf.Variable | None = None,
        sparse_as_dense: bool = False,
        comm: Communicator | None = None,
    ) -> None:
        adapter.check_gradients(op, compression, WIRES)
        members(comm)
        self._tape = tape or tf.GradientTape(persistent, watch_accessed_variables)
        self._op = op
        self._compression, self._residual = compression, residual
        self._sparse_as_dense = sparse_as_dense
        self._comm = comm

    def __enter__(self) -> DistributedGradientTape:
        self._tape.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._tape.__exit__(*raised)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    @_as_it_is
    def gradient(self, target: Any, sources: Any, *arguments: Any, **options: Any) -> Any:
        """Compute the gradient of the sum or average of all ranks' targets, like
        tf.GradientTape.gradient."""
        own = self._tape.gradient(target, sources, *arguments, **options)
        reduced = allreduce_gradients(
            tf.nest.flatten(own),
            op=self._op,
            compression=self._compression,
            residual=self._residual,
            sparse_as_dense=self._sparse_as_dense,
            comm=self._comm,
        )
        return tf.nest.pack_sequence_as(own, reduced)


def broadcast_parameters(
    variables: Iterable[Any], root: int = 0, *, comm: Communicator | None = None
) -> None:
    """Copy the root's values of TensorFlow's or Keras' variables to all ranks, or to the ranks of
    comm.

    All ranks call it with variables of equal shapes and types in the same order. Variables that
    cannot be sent, such as strings, do not change. Raises like `broadcast`.
    """
    variables = list(variables)
    for index, variable in enumerate(variables):
        if not hasattr(variable, "assign"):
            raise InvalidArgument(
                f"variables[{index}] is a {type(variable).__name__}; must be a variable"
            )
    for variable in variables:
        value = tf.convert_to_tensor(variable)
        if value.dtype != tf.string:
            variable.assign(broadcast(value, root, comm=comm))


def broadcast_object(value: Any, root: int = 0, *, comm: Communicator | None = None) -> Any:
    """Return the root's object on all ranks, or on the ranks of comm. Other ranks' `value` is
    ignored.

    The object is pickled, so use it only among ranks that trust each other. All ranks call it.
    Raises like `broadcast`, and TypeError on all ranks if it cannot be pickled.
    """
    _, rank, size = members(comm)
    root = adapter.check_rank("root", root, size)
    data = packed(value, root) if rank == root else b""
    received = allgather(tf.constant(np.frombuffer(data, np.uint8)), comm=comm)
    if rank == root:
        check(data)
        return value
    return unpacked(received.numpy().tobytes())


def allgather_object(value: Any, *, comm: Communicator | None = None) -> list[Any]:
    """Return the objects of all ranks, or of the ranks of comm, in the order of ranks. Pickled as
    for `broadcast_object`."""
    _, rank, _ = members(comm)
    own = tf.constant(np.frombuffer(packed(value, rank), np.uint8))
    lengths = allgather(tf.constant(len(own), tf.int64), comm=comm).numpy().tolist()
    parts = tf.split(allgather(own, comm=comm), lengths)
    return [unpacked(part.numpy().tobytes()) for part in parts]


def average_metrics(
    metrics: Mapping[str, Any], weight: float = 1.0, *, comm: Communicator | None = None
) -> dict[str, float]:
    """Return the average of each metric over all ranks, or over the ranks of comm.

    metrics  numbers, or tensors of one element, by name; the same names in the same order on all
             ranks
    weight   the weight of this rank's values, such as its number of samples

    All ranks call it. Raises like `allreduce`, and InvalidArgument for a negative weight.
    """

    def total(own: list[float]) -> list[float]:
        sums: list[float] = allreduce(tf.constant(own, tf.float64), comm=comm).numpy().tolist()
        return sums

    return adapter.average_metrics(metrics, weight, total)


def _narrowed(tensor: tf.Tensor, compression: str | None) -> tf.Tensor:
    dtype = _COMPRESSED.get(compression or "")
    return tf.cast(tensor, dtype) if dtype and tensor.dtype in (tf.float32, tf.float64) else tensor


def _gather_slices(
    slices: tf.IndexedSlices, op: str, name: str | None, comm: Communicator | None
) -> tf.IndexedSlices:
    values = allgather(slices.values, name=name and f"{name}/values", comm=comm)
    if op == "average":
        values = values / tf.cast(members(comm)[2], values.dtype)
    indices = allgather(slices.indices, name=name and f"{name}/indices", comm=comm)
    return tf.IndexedSlices(values, indices, slices.dense_shape)
