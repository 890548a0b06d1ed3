# SPDX-License-Identifier: Apache-2.0
"""Broadcast of a model's state, and averages of metrics over the ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from ddl_core.adapter import average_metrics as average
from ddl_core.errors import InvalidArgument
from ddl_keras._adapter import adapter, among
from ddl_keras.packing import shared_variables


def broadcast_model(model: keras.Model, root: int = 0, *, comm: Any = None) -> None:
    """Copy the root's weights of a model and the variables of its optimizer to all ranks, or to the
    ranks of the communicator comm. Each rank keeps its own seeds of random layers, such as Dropout.

    All ranks call it, with models of the same layers. Builds the optimizer if necessary. Raises the
    errors of the adapter's broadcast, and on all ranks InvalidArgument if the model is not built on
    one of them, or if their numbers of variables differ.
    """
    if not broadcast_built(model, root, comm):
        here = "built" if model.built else "not built"
        raise InvalidArgument(
            f"model is not built on some rank, so it has no variables there (on this rank it is"
            f" {here}): call it on a batch, call model.build, or use callbacks.BroadcastModel"
        )


def broadcast_built(
    model: keras.Model, root: int, comm: Any, values: Sequence[Any] | None = None
) -> bool:
    """Broadcast like `broadcast_model`, or return False if the model is not built on some rank.

    values  values for the root to send instead of its present ones
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
            f"model has {len(variables)} variables on this rank, including its optimizer's, and"
            f" {fewest} to {-most} on all ranks; give all ranks the same layers and optimizer"
        )
    for variable, value in zip(variables, values or read(variables), strict=True):
        if value.dtype.kind not in "OSU":  # not the strings of a lookup layer
            moved = _moved(value, lambda tensor: adapter.broadcast(tensor, root, **options))
            variable.assign(moved.reshape(value.shape))
    return True


def variables_of(model: keras.Model) -> list[Any]:
    """Return the weights of a built model and the variables of its optimizer, which is built if
    necessary, without the rounding errors of gradients, which differ between ranks."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return list(model.weights)
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    return [*model.weights, *shared_variables(optimizer)]


def read(variables: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """Return copies of the values of variables."""
    return [np.array(keras.ops.convert_to_numpy(variable.value)) for variable in variables]


def average_metrics(
    metrics: Mapping[str, Any], weight: float = 1.0, *, comm: Any = None
) -> dict[str, float]:
    """Return the average of each metric over all ranks, or over the ranks of the communicator comm.

    metrics  numbers by name, the same names on all ranks
    weight   the weight of this rank's values, such as its number of samples

    All ranks call it. Raises the errors of the adapter's allgather, and InvalidArgument for a
    negative weight and if names differ between ranks.
    """

    options = among(comm)

    def total(own: list[float]) -> list[float]:
        # As bytes, since JAX has no float64 by default.
        sent = np.array(own, np.float64).view(np.uint8)
        gathered = _moved(sent, lambda tensor: adapter.allgather(tensor, **options))
        if gathered.size % sent.size:
            raise InvalidArgument(
                f"this rank has {len(metrics)} metrics, but another rank has another number:"
                " pass the"
                " same metrics on all ranks"
            )
        sums: list[float] = gathered.view(np.float64).reshape(-1, len(own)).sum(0).tolist()
        return sums

    averaged = average(dict(sorted(metrics.items())), weight, total)
    return {name: averaged[name] for name in metrics}


def synchronize(model: keras.Model) -> None:
    """Update the model's variables, since JAX's training keeps their values elsewhere."""
    if keras.backend.backend() == "jax" and hasattr(model, "jax_state_sync"):
        model.jax_state_sync()


def _moved(value: np.ndarray[Any, Any], operation: Any) -> np.ndarray[Any, Any]:
    tensor = keras.ops.convert_to_tensor(value, dtype=keras.backend.standardize_dtype(value.dtype))
    moved: np.ndarray[Any, Any] = np.array(keras.ops.convert_to_numpy(operation(tensor)))
    return moved
