# SPDX-License-Identifier: Apache-2.0
"""The operations' gradients, in TensorFlow's registry.

Each rank's loss is a function of all ranks' inputs. An operation's gradient is the gradient of the
sum of all ranks' losses. It is computed by the operation's transpose.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ddl_tensorflow import _build
from ddl_tensorflow.naming import match
from ddl_tensorflow.world import part


@tf.RegisterGradient("DdlAllreduce")
def _allreduce(op: tf.Operation, gradient: tf.Tensor) -> tf.Tensor:
    return _operations().ddl_allreduce(gradient, op=_linear(op), **_matched(op))


@tf.RegisterGradient("DdlGroupedAllreduce")
def _grouped_allreduce(op: tf.Operation, *gradients: Any) -> list[tf.Tensor]:
    dense = [
        tf.zeros_like(each) if gradient is None else gradient
        for gradient, each in zip(gradients, op.outputs, strict=True)
    ]
    return list(_operations().ddl_grouped_allreduce(dense, op=_linear(op), **_matched(op)))


@tf.RegisterGradient("DdlBroadcast")
def _broadcast(op: tf.Operation, gradient: tf.Tensor) -> tf.Tensor:
    total = _operations().ddl_allreduce(gradient, op="sum", **_matched(op))
    if op.get_attr("root") == part(op.get_attr("comm")).rank:
        return total
    # Zeros that depend on the operation. TensorFlow prunes operations without dependents, and the
    # root would then wait for this rank. The same holds for the gradient of this gradient.
    return tf.where(False, total, tf.zeros_like(total))


@tf.RegisterGradient("DdlAllgather")
def _allgather(op: tf.Operation, gradient: tf.Tensor, _: Any) -> tf.Tensor:
    rows = op.get_attr("rows")
    own = _operations().ddl_reduce_scatter(
        gradient,
        tf.constant(rows, tf.int64) if rows else op.outputs[1],
        op="sum",
        **_matched(op),
    )
    return tf.reshape(own, tf.shape(op.inputs[0]))  # a scalar was sent as a row


@tf.RegisterGradient("DdlReduceScatter")
def _reduce_scatter(op: tf.Operation, gradient: tf.Tensor) -> list[Any]:
    size = part(op.get_attr("comm")).size
    if _linear(op) == "average":
        gradient = gradient / tf.cast(size, gradient.dtype)
    rows = tf.get_static_value(op.inputs[1])
    given = [] if rows is None else [int(each) for each in rows]
    if rows is not None and not given and gradient.shape.rank and gradient.shape[0] is not None:
        given = [gradient.shape[0]] * size  # equal parts need no exchange
    gathered, _ = _operations().ddl_allgather(gradient, rows=given, **_matched(op))
    return [tf.ensure_shape(gathered, op.inputs[0].shape), None]


@tf.RegisterGradient("DdlAlltoall")
def _alltoall(op: tf.Operation, gradient: tf.Tensor, _: Any) -> list[Any]:
    equal = op.inputs[1].shape == [0]  # no sizes were given
    # A constant of this graph, not of the other graph: XLA needs it to compile.
    sent = tf.constant([], tf.int64) if equal else op.outputs[1]
    returned, _ = _operations().ddl_alltoall(gradient, sent, **_matched(op))
    return [tf.ensure_shape(returned, op.inputs[0].shape), None]


def _operations() -> Any:
    return _build.load().operations


def _linear(op: tf.Operation) -> str:
    """Return the operation's reduction. Raises LookupError if the reduction has no gradient."""
    name: str = op.get_attr("op").decode()
    if name not in ("sum", "average"):
        raise LookupError(
            f"{op.type} with op {name!r} has no gradient; only sum and average have one"
        )
    return name


def _matched(op: tf.Operation) -> dict[str, Any]:
    """Return the comm of the operation, and the name that matches this gradient on all ranks. In a
    graph, an operation may have several gradients."""
    comm, forward = op.get_attr("comm"), op.get_attr("tensor_name").decode()
    with tf.name_scope(f"{op.type.lower()}_gradient") as scope:
        return {"comm": comm, "tensor_name": match(None, scope, comm, forward)}
