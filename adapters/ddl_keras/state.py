# SPDX-License-Identifier: Apache-2.0
"""One rank's model on all ranks, and averages over the ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from ddl_core.adapter import average_metrics as average
from ddl_core.errors import InvalidArgument
from ddl_keras._adapter import adapter, among
from ddl_keras.optimizer import refuse_scaled


def broadcast_model(model: keras.Model, root: int = 0, *, comm: Any = None) -> None:
    """Give all ranks, or those of the communicator comm, the root's variables of a model and of its
    optimizer.

    All ranks call it, with models of the same layers, whose optimizers are all built or all not.
    Raises what the adapter's broadcast does, and InvalidArgument for a LossScaleOptimizer around a
    DistributedOptimizer.
    """
    synchronize(model)
    optimizer = getattr(model, "optimizer", None)
    refuse_scaled(optimizer)
    options = among(comm)
    for variable in [*model.variables, *(optimizer.variables if optimizer else [])]:
        value = keras.ops.convert_to_numpy(variable.value)
        if value.dtype.kind in "OSU":  # strings of a lookup layer
            continue
        moved = _moved(value, lambda tensor: adapter.broadcast(tensor, root, **options))
        variable.assign(moved.reshape(value.shape))


def average_metrics(
    metrics: Mapping[str, Any], weight: float = 1.0, *, comm: Any = None
) -> dict[str, float]:
    """Return the average over all ranks, or those of the communicator comm, of each metric.

    metrics  numbers by name, the same names on all ranks
    weight   how much this rank's values count, such as its number of samples

    All ranks call it. Raises what the adapter's allgather does, and InvalidArgument for a negative
    weight and for other names on another rank.
    """

    options = among(comm)

    def total(own: list[float]) -> list[float]:
        # As bytes, since JAX has no float64 by default.
        sent = np.array(own, np.float64).view(np.uint8)
        gathered = _moved(sent, lambda tensor: adapter.allgather(tensor, **options))
        if gathered.size % sent.size:
            raise InvalidArgument(f"metrics: are {len(metrics)} here, and not on all ranks")
        sums: list[float] = gathered.view(np.float64).reshape(-1, len(own)).sum(0).tolist()
        return sums

    averaged = average(dict(sorted(metrics.items())), weight, total)
    return {name: averaged[name] for name in metrics}


def synchronize(model: keras.Model) -> None:
    """Give the model's variables their values: JAX's training keeps them elsewhere."""
    if keras.backend.backend() == "jax" and hasattr(model, "jax_state_sync"):
        model.jax_state_sync()


def _moved(value: np.ndarray[Any, Any], operation: Any) -> np.ndarray[Any, Any]:
    tensor = keras.ops.convert_to_tensor(value, dtype=keras.backend.standardize_dtype(value.dtype))
    moved: np.ndarray[Any, Any] = np.array(keras.ops.convert_to_numpy(operation(tensor)))
    return moved
