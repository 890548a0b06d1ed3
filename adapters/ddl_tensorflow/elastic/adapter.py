# SPDX-License-Identifier: Apache-2.0
"""The TensorFlow adapter of ddl_elastic: a program's gradients, and the variables of its model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ddl_elastic.frameworks import flat, protocol
from ddl_elastic.frameworks.buffers import Buffers
from ddl_elastic.frameworks.flat import Flat, Spec, Values
from ddl_tensorflow.elastic import pins


class TensorFlowAdapter(Flat):
    """The TensorFlow adapter; implements ddl_elastic.frameworks.protocol.Framework."""

    seed = staticmethod(pins.seed)

    def __init__(
        self, model: Any, optimizer: Any, generators: Sequence[tf.random.Generator] = ()
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self._trained = list(model.trainable_variables)
        if not self._trained:
            raise ValueError(
                "model has no trainable variables; call it once on a batch before the job"
            )
        if not getattr(optimizer, "built", True):
            optimizer.build(self._trained)
        others = list(model.non_trainable_variables)
        self._seeds = [each for each in others if _is_generator(each)]
        self._generators = [*generators, *_find_generators(model)]
        changed = [each for each in others if not _is_generator(each)]
        self._buffers = Buffers(lambda: _read(changed), lambda values: _write(changed, values))
        averaged = [*self._trained, *changed]
        self.lay_out([Spec(tuple(each.shape), _dtype(each), name=each.name) for each in averaged])
        self.gradients: list[tf.Tensor] = []
        self.random_seed = tf.zeros(2, tf.int32)

    def held(self) -> list[Any]:
        """Return the parts of the job's state; see ddl_elastic/hidden/."""
        found = [*self._trained, *self.model.non_trainable_variables, *self._generators]
        return [*found, self.optimizer, *getattr(self.optimizer, "variables", ())]

    def environment(self) -> dict[str, str]:
        return pins.describe()

    # ---- a share ----

    def begin(self, worker: int) -> None:
        self._buffers.begin()
        self._seed()

    def _seed(self) -> None:
        """Seed the share's generators from Python's generator, which the caller has seeded for this
        step and worker."""
        for each in self._seeds:
            each.assign([random.getrandbits(31), 0])
        for generator in self._generators:
            generator.reset_from_seed(random.getrandbits(63))
        self.random_seed = tf.constant([random.getrandbits(31) for _ in range(2)], tf.int32)

    def backward(
        self, loss: Any, ready: protocol.Ready | None = None, weight: Any = 1.0
    ) -> protocol.Share:
        """Add a share's (loss, gradients), computed by a GradientTape."""
        value, gradients = loss
        self._check()
        pairs = zip(self._trained, gradients, strict=True)
        found = [_dense(*pair) for pair in pairs]
        return self.take([*found, *self._buffers.changes()], value, weight)

    def _check(self) -> None:
        now = {id(each): each.name for each in self.model.trainable_variables}
        flat.check_trained({id(each): each.name for each in self._trained}, now)

    def run(self, batch: Any, ready: protocol.Ready | None = None) -> protocol.Share:
        raise NotImplementedError(
            "TensorFlow jobs need a training loop: call step.backward((loss, gradients))"
            " for each share"
        )

    # ---- the result ----

    def apply(self) -> None:
        self._check()
        found = self.results()
        count = len(self._trained)
        weight = self.weight
        self.gradients = [tf.convert_to_tensor(each / weight) for each in found[:count]]
        self._buffers.commit(found[count:])
        self._seed()

    def update(self) -> None:
        raise NotImplementedError("TensorFlow jobs need a training loop that steps the optimizer")

    # ---- the state ----

    def state(self) -> protocol.State:
        named = self._named()
        state = flat.pack(dict(zip(named, _read(list(named.values())), strict=True)))
        return self.add_loss(state)

    def load(self, state: protocol.State) -> None:
        named = self._named()
        like = dict(zip(named, _read(list(named.values())), strict=True))
        found = flat.unpack(state, like)
        self.load_loss(state)
        _write(list(named.values()), [found[name] for name in named])
        self._buffers.forget()

    def _named(self) -> dict[str, Any]:
        """Return the variables by name. Names have a number instead of the layer, because a second
        model in the process gives its layers other names."""
        others = list(self.model.non_trainable_variables)
        groups = {"model": [*self._trained, *others], "optimizer": self.optimizer.variables}
        return {
            f"{kind}.{number}.{each.name}": each
            for kind, group in groups.items()
            for number, each in enumerate(group)
        }


def _is_generator(variable: Any) -> bool:
    """Return True if the variable is the state of a Keras SeedGenerator."""
    return str(variable.name).startswith("seed_generator_state")


def _find_generators(model: Any) -> list[tf.random.Generator]:
    """Return the generators that are attributes of the model's modules."""
    if not isinstance(model, tf.Module):
        return []
    return [*model._flatten(predicate=lambda each: isinstance(each, tf.random.Generator))]


def _dtype(variable: Any) -> Any:
    return tf.as_dtype(variable.dtype).as_numpy_dtype


def _dense(variable: Any, gradient: Any) -> Values:
    if gradient is None:
        raise ValueError(
            f"the loss does not depend on {variable.name}; leave it out of the trainable variables"
        )
    found: Values = tf.convert_to_tensor(gradient).numpy()
    return found


def _read(variables: Sequence[Any]) -> list[Values]:
    return [np.array(each.numpy()) for each in variables]


def _write(variables: Sequence[Any], values: Sequence[Values]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
