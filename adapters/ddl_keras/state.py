# SPDX-License-Identifier: Apache-2.0
"""One rank's model on all ranks, and averages over the ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from ddl_core.adapter import average_metrics as average
from ddl_core.errors import InvalidArgument
from ddl_keras._adapter import adapter, among


def broadcast_model(model: keras.Model, root: int = 0, *, comm: Any = None) -> None:
    """Give all ranks, or those of the communicator comm, the root's weights of a model and the
    variables of its optimizer. The seeds of random layers, such as Dropout, stay those of the rank.

    All ranks call it, with models of the same layers. The optimizer is built if it is not. Raises
    what the adapter's broadcast does, and on all ranks InvalidArgument if the model is not built on
    one of them, or if they have other numbers of variables.
    """
    if not broadcast_built(model, root, comm):
        here = "built" if model.built else "not built"
        raise InvalidArgument(
            f"model: has no variables on some rank, because it is not built there (here it is"
            f" {here}); call it on a batch, or model.build, or use callbacks.BroadcastModel"
        )


def broadcast_built(
    model: keras.Model, root: int, comm: Any, values: Sequence[Any] | None = None
) -> bool:
    """Broadcast as `broadcast_model`, or return False if the model is not built on some rank.

    values  for the root to send instead of its present ones
    """
    options = among(comm)
    synchronize(model)
    variables = variables_of(model) if model.built else []
    own = np.array([model.built, len(variables), -len(variables)], np.int32)
    built, fewest, most = _moved(own, lambda tensor: adapter.allreduce(tensor, "min", **options))
    if not built:
        return False
    if fewest != -most:
        raise InvalidArgument(
            f"model: has {len(variables)} variables here, with those of its optimizer, and on all"
            f" ranks {fewest} to {-most}; give all ranks the same layers and the same optimizer"
        )
    for variable, value in zip(variables, values or read(variables), strict=True):
        if value.dtype.kind not in "OSU":  # not the strings of a lookup layer
            moved = _moved(value, lambda tensor: adapter.broadcast(tensor, root, **options))
            variable.assign(moved.reshape(value.shape))
    return True


def variables_of(model: keras.Model) -> list[Any]:
    """Return the weights of a model that is built and the variables of its optimizer, which is
    built if it is not."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return list(model.weights)
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    return [*model.weights, *optimizer.variables]


def read(variables: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """Return copies of the values of variables."""
    return [np.array(keras.ops.convert_to_numpy(variable.value)) for variable in variables]


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
