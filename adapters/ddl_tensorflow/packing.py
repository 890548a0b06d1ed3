# SPDX-License-Identifier: Apache-2.0
"""Gradients that are sent between hosts in a wire format of fewer bytes, with error feedback."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from ddl_core.errors import InvalidArgument
from ddl_tensorflow import world
from ddl_tensorflow.calls import Array, call
from ddl_tensorflow.collectives import in_xla
from ddl_tensorflow.communicators import Communicator, members
from ddl_tensorflow.naming import match

WIRES = ("int8", "int4")

_waiters = ThreadPoolExecutor(32, "ddl_packed")  # any number of operations may be pending


def gradient_residual(variables: Iterable[Any]) -> tf.Variable:
    """Return a variable, initially zeros, for the rounding errors of these variables' gradients.

        residual = ddl.gradient_residual(model.trainable_variables)
        tape = ddl.DistributedGradientTape(tape, compression="int8", residual=residual)

    Each rank has its own values: save and restore them on each rank. If there are more or fewer
    ranks after a restart, or an operation has failed, begin with zeros.
    """
    packed = (each.shape for each in variables if tf.as_dtype(each.dtype) == tf.float32)
    return tf.Variable(tf.zeros(sum(map(math.prod, packed))), trainable=False, name="ddl_residual")


@dataclass(frozen=True)
class _Packed:
    """A function that performs a packed all-reduce. Equal objects count as one function of the
    graph."""

    comm: int
    op: Any
    wire: Any

    def __call__(self, name: str, inputs: list[Array]) -> Future[list[Array]]:
        gradients, residual = (each.copy() for each in inputs)
        work = world.part(self.comm).allreduce_async(
            gradients, op=self.op, residual=residual, wire=self.wire, name=name or None
        )

        def wait() -> list[Array]:
            work.wait()
            return [gradients, residual]

        return _waiters.submit(wait)


def allreduce_packed(
    tensors: Sequence[tf.Tensor],
    residual: Any,
    op: str,
    wire: str,
    name: str | None,
    comm: Communicator | None,
) -> list[tf.Tensor]:
    """Reduce tensors of float32 as one in this wire format, and assign the new residual. Raises
    InvalidArgument for a residual of another size, and like `allreduce_flat`."""
    sizes = [each.shape.num_elements() for each in tensors]
    if not isinstance(residual, tf.Variable) or residual.shape != [sum(map(int, sizes))]:
        raise InvalidArgument(
            f"residual is {getattr(residual, 'shape', residual)}; must be a variable of"
            f" {sum(map(int, sizes))} float32 values, as returned by gradient_residual, because"
            f" compression is {wire}"
        )
    flat = tf.concat([tf.reshape(each, [-1]) for each in tensors], 0)
    flat, lost = allreduce_flat(flat, residual.value(), op, wire, name, comm=comm)
    residual.assign(lost)
    parts = tf.split(flat, sizes)
    return [tf.reshape(part, each.shape) for part, each in zip(parts, tensors, strict=True)]


def allreduce_flat(
    flat: tf.Tensor,
    residual: tf.Tensor,
    op: str,
    wire: str,
    name: str | None = None,
    *,
    comm: Communicator | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Reduce a flat tensor of float32 in this wire format. Return the result and the new residual.
    Raises InvalidArgument in functions that XLA compiles."""
    if in_xla():
        raise InvalidArgument(
            f"compression is {wire}, which is not supported in a function compiled by XLA; set"
            " jit_compile=False, or use bf16"
        )
    number, *_ = members(comm)
    with tf.name_scope(name or "ddl_allreduce_packed") as scope:
        how = _Packed(number, op, wire)
        outputs = [flat, residual]
        result, lost = call(how, match(name, scope, number), outputs, outputs)
    return result, lost
