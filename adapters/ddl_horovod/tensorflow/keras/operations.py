# SPDX-License-Identifier: Apache-2.0
"""Operations on arrays, numbers and tensors of Keras programs, and the loading of models."""

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
    """Run ddl_horovod.tensorflow's broadcast_global_variables in the default session of
    TensorFlow 1."""
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
    """Concatenate the ranks' values along the first dimension, whose sizes may differ."""
    return operations.allgather(tf.constant(value), name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> tf.Tensor:
    """Return the root's value on all ranks."""
    return operations.broadcast(tf.constant(value), root_rank, name)


def reducescatter(value: Any, name: str | None = None, op: Reduction = Average) -> tf.Tensor:
    """Return this rank's rows of the `allreduce` result. op must be Average or Sum."""
    return operations.reducescatter(tf.constant(value), op=op, name=name)


def load_model(
    filepath: Any,
    custom_optimizers: Sequence[type] | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    """Load a model, and make its optimizer a DistributedOptimizer.

    custom_optimizers  optimizer classes that Keras does not know
    custom_objects     the argument of keras.models.load_model
    legacy_opts        must be False: Keras 3 has no legacy optimizers
    """
    if legacy_opts:
        raise ValueError("legacy_opts: Keras 3 has no legacy optimizers; set it to False")
    known = {each.__name__: each for each in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**known, **(custom_objects or {})})
    if model.optimizer is not None:
        DistributedOptimizer(model.optimizer, compression=compression)
    return model
