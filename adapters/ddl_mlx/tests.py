# SPDX-License-Identifier: Apache-2.0
"""The parts of the adapters' tests that are specific to MLX."""

from __future__ import annotations

from typing import Any

import numpy as np
from shims import Arrays


class Contract(Arrays):
    def array(self, value: np.ndarray) -> Any:
        import mlx.core as mx

        if value.dtype.name == "bfloat16":
            return mx.array(np.asarray(value, order="C").view(np.uint16)).view(mx.bfloat16)
        return mx.array(value, mx.float64 if value.dtype == np.float64 else None)

    def numpy(self, array: Any) -> np.ndarray:
        import mlx.core as mx

        if array.dtype == mx.bfloat16:
            return np.array(array.view(mx.uint16)).view("bfloat16")
        return np.array(array)


# The tests run BEFORE, then the example in docs/heritage.md, then AFTER.
BEFORE = """\
import mlx.core as mx
import mlx.optimizers as optim
from mlx import nn
from mlx.utils import tree_flatten
model = nn.Linear(4, 3)
images, labels = mx.random.normal((8, 4)), mx.array([0, 1, 2, 0, 1, 2, 0, 1])
def loss_of(model, images, labels):
    return nn.losses.cross_entropy(model(images), labels, reduction="mean")
"""
AFTER = """\
weights = [model.weight, model.bias]
"""

# Every method of updating averages the gradients. For START see
# tests/adapters/test_small_training.py.
UPDATES = """\
import mlx.core as mx
from mlx import nn, optimizers

model = nn.Linear(2, 1, bias=False)
ddl.broadcast_parameters({"weight": model.weight})
gradients = {"weight": mx.full((1, 2), rank + 1.0)}
optimizer = ddl.DistributedOptimizer(optimizers.SGD(0.5))
steps = Steps(lambda: np.array(model.weight))
optimizer.update(model, gradients)
steps.taken(0.5)
model.update(optimizer.apply_gradients(gradients, model))
steps.taken(0.5)
optimizer.learning_rate = 2.0
optimizer.update(model, gradients)
steps.taken(2.0)
"""
