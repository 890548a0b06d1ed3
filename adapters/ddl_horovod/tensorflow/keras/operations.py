# SPDX-License-Identifier: Apache-2.0
"""Operations on values that Keras's programs have at hand, and models from files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from ddl_horovod.common import Average, Reduction
from ddl_horovod.tensorflow import functions, operations
from ddl_horovod.tensorflow.compression import Compression
from ddl_horovod.tensorflow.keras.optimizer import DistributedOptimizer

__all__ = ["allgather", "broadcast", "broadcast_global_variables", "load_model", "reducescatter"]


def broadcast_global_variables(root_rank: int) -> Any:
    """As hvd.broadcast_global_variables of ddl_horovod.tensorflow; in a graph of TensorFlow 1 it
    also runs the operation, in the default session."""
    operation = functions.broadcast_global_variables(root_rank)
    return tf.compat.v1.get_default_session().run(operation)


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: Reduction | None = None,
    compression: Any = Compression.none,
) -> tf.Tensor:
    """Combine the ranks' values, by default to their average."""
    scales = {"prescale_factor": prescale_factor, "postscale_factor": postscale_factor}
    return operations.allreduce(
        tf.constant(value), average, op=op, compression=compression, name=name, **scales
    )


def allgather(value: Any, name: str | None = None) -> tf.Tensor:
    """The ranks' values one after the other along the first dimension, in which they may differ."""
    return operations.allgather(tf.constant(value), name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> tf.Tensor:
    """The root's value."""
    return operations.broadcast(tf.constant(value), root_rank, name)


def reducescatter(value: Any, name: str | None = None, op: Reduction = Average) -> tf.Tensor:
    """Return this rank's rows of what `allreduce` would give, by Average or Sum."""
    return operations.reducescatter(tf.constant(value), op=op, name=name)


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """A saved model, with its optimizer made a DistributedOptimizer.

    custom_optimizers  classes of optimizers that Keras does not know
    custom_objects     as for keras.models.load_model
    legacy_opts        False: Keras 3 has no legacy optimizers
    """
    if legacy_opts:
        raise ValueError("legacy_opts: Keras 3 has no legacy optimizers; give False")
    known = {each.__name__: each for each in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
    if model.optimizer is not None:
        DistributedOptimizer(model.optimizer, compression=compression)
    return model
