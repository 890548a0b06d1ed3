# SPDX-License-Identifier: Apache-2.0
"""The parts of the adapters' tests that are specific to PaddlePaddle."""

from __future__ import annotations

from typing import Any

import numpy as np
from shims import Arrays


class Contract(Arrays):
    def array(self, value: np.ndarray) -> Any:
        import paddle

        if value.dtype.name == "bfloat16":
            return paddle.to_tensor(value.view(np.uint16), dtype="bfloat16")
        return paddle.to_tensor(value)

    def numpy(self, array: Any) -> np.ndarray:
        import paddle

        value = np.asarray(array.numpy())
        return value.view("bfloat16") if array.dtype == paddle.bfloat16 else value


# The tests run BEFORE, then the example in docs/heritage.md, then AFTER.
BEFORE = """\
import paddle
model = paddle.nn.Linear(4, 3)
"""
AFTER = """\
model(paddle.randn([8, 4])).square().sum().backward()
optimizer.step()
weights = model.parameters()
"""

# Every method of updating averages the gradients. For START see
# tests/adapters/test_small_training.py.
UPDATES = """\
import paddle

weight = paddle.create_parameter([2], "float32")
ddl.broadcast_parameters({"weight": weight})
steps = Steps(weight.numpy)


def backward():
    loss = (weight * (rank + 1)).sum()
    loss.backward()
    return loss


for parameters in ([weight], [{"params": [weight], "learning_rate": 1.0}]):
    optimizer = ddl.DistributedOptimizer(paddle.optimizer.SGD(0.5, parameters))
    backward()
    optimizer.step()
    steps.taken(0.5)
    optimizer.clear_grad()

optimizer = ddl.DistributedOptimizer(paddle.optimizer.SGD(0.5, [weight]))
optimizer.minimize(backward())
steps.taken(0.5)
optimizer.clear_grad()
optimizer.set_lr(2.0)
backward()
optimizer.step()
steps.taken(2.0)
"""
