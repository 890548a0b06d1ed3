# SPDX-License-Identifier: Apache-2.0
"""What the programs about packed gradients of Keras train: a network that learns another one."""

from typing import Any

import keras
import numpy as np

STEPS = 40


class KerasTask:
    """The data of all ranks, of which this rank trains on a part."""

    def __init__(self, rank: int, size: int) -> None:
        self.inputs = np.random.default_rng(5).normal(size=(size * 32, 64)).astype(np.float32)
        self.wanted = keras.ops.convert_to_numpy(make_model(5)(self.inputs))
        self._own = slice(rank * 32, rank * 32 + 32)

    def loss(self, model: keras.Model) -> float:
        found = keras.ops.convert_to_numpy(model(self.inputs))
        return float(np.mean((found - self.wanted) ** 2))

    def fit(self, model: keras.Model, steps: int, *callbacks: Any) -> None:
        options = {"batch_size": 32, "shuffle": False, "verbose": 0, "callbacks": list(callbacks)}
        model.fit(self.inputs[self._own], self.wanted[self._own], epochs=steps, **options)


def make_model(seed: int) -> keras.Model:
    keras.utils.set_random_seed(seed)
    dense = keras.layers.Dense
    return keras.Sequential([keras.Input([64]), dense(128, "tanh"), dense(64)])


def compiled(distribute: Any, **options: Any) -> keras.Model:
    """Return a model with a DistributedOptimizer that `distribute` makes."""
    model = make_model(9)
    model.compile(distribute(keras.optimizers.Adam(0.003), **options), "mse")
    return model


def flat(values: Any) -> np.ndarray:
    return np.concatenate([np.ravel(keras.ops.convert_to_numpy(each)) for each in values])
