# SPDX-License-Identifier: Apache-2.0
"""The computation of a share on each Keras backend: the model's train_step, with an optimizer that
keeps the gradients instead of applying them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras

# Takes a batch; returns the gradients of all trainable variables, and the logs. Other variables of
# the model change as in `fit`.
Compute = Callable[[Any], tuple[Sequence[Any], dict[str, Any]]]
Update = Callable[[Sequence[Any]], None]  # step the optimizer with these gradients


class Keeper:
    """A substitute for an optimizer while a share is computed. It keeps the gradients."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self.gradients: Sequence[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def apply(self, gradients: Sequence[Any], variables: Any = None) -> None:
        self.gradients = list(gradients)

    def apply_gradients(self, pairs: Any) -> None:
        self.apply([gradient for gradient, _ in pairs])

    def stateless_apply(self, state: Any, gradients: Any, variables: Any) -> tuple[Any, Any]:
        self.apply(gradients)
        return variables, state

    @contextmanager
    def of(self, model: Any) -> Iterator[None]:
        """Make this the model's optimizer in this context."""
        model.optimizer = self
        try:
            yield
        finally:
            model.optimizer = self._optimizer


def make_functions(model: keras.Model) -> tuple[Compute, Update]:
    """Return the functions that compute a share and that update the model, for the backend that
    Keras uses in this process."""
    keeper = Keeper(model.optimizer)
    return _MAKERS[keras.backend.backend()](model, keeper)


def _tensorflow(model: Any, keeper: Keeper) -> tuple[Compute, Update]:
    tf = importlib.import_module("tensorflow")
    optimizer, variables = model.optimizer, model.trainable_variables

    def compute(batch: Any) -> Any:
        with keeper.of(model):
            logs = model.train_step(batch)
        return keeper.gradients, logs

    def update(gradients: Sequence[Any]) -> None:
        optimizer.apply(gradients, variables)

    if not model.run_eagerly:
        compute = tf.function(compute, reduce_retracing=True, jit_compile=model.jit_compile)
        update = tf.function(update)
    return compute, lambda gradients: update([tf.convert_to_tensor(each) for each in gradients])


def _jax(model: Any, keeper: Keeper) -> tuple[Compute, Update]:
    jax = importlib.import_module("jax")
    optimizer = model.optimizer
    trained, others = model.trainable_variables, model.non_trainable_variables

    @jax.jit
    def train(state: Any, batch: Any) -> Any:
        with keeper.of(model):
            logs, (_, changed, _, metrics) = model.train_step(state, batch)
        return keeper.gradients, logs, changed, metrics

    apply = jax.jit(optimizer.stateless_apply)

    def compute(batch: Any) -> Any:
        groups = (trained, others, optimizer.variables, model.metrics_variables)
        state = tuple([each.value for each in group] for group in groups)
        gradients, logs, changed, metrics = train(state, batch)
        keeper.gradients = []
        _assign(others, changed)
        _assign(model.metrics_variables, metrics)
        return gradients, logs

    def update(gradients: Sequence[Any]) -> None:
        groups = (optimizer.variables, trained)
        slots, values = ([each.value for each in group] for group in groups)
        values, slots = jax.block_until_ready(apply(slots, gradients, values))
        _assign(trained, values)
        _assign(optimizer.variables, slots)

    return compute, update


def _assign(variables: Sequence[Any], values: Sequence[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _torch(model: Any, keeper: Keeper) -> tuple[Compute, Update]:
    torch = importlib.import_module("torch")
    optimizer, variables = model.optimizer, model.trainable_variables

    def compute(batch: Any) -> Any:
        with keeper.of(model):
            logs = model.train_step(keras.tree.map_structure(keras.ops.convert_to_tensor, batch))
        return keeper.gradients, logs

    def update(gradients: Sequence[Any]) -> None:
        with torch.no_grad():
            optimizer.apply([keras.ops.convert_to_tensor(each) for each in gradients], variables)

    return compute, update


_MAKERS = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}
