# SPDX-License-Identifier: Apache-2.0
"""The parts of the adapters' tests that are specific to tinygrad."""

from __future__ import annotations

from typing import Any

import numpy as np
from shims import Arrays


class Contract(Arrays):
    def array(self, value: np.ndarray) -> Any:
        from tinygrad import Tensor

        return Tensor(value)

    def numpy(self, array: Any) -> np.ndarray:
        return np.asarray(array.numpy())


# The tests run BEFORE, then the example in docs/heritage.md, then AFTER.
BEFORE = """\
from tinygrad import Context, Tensor, nn
model = nn.Linear(4, 3)
"""
AFTER = """\
with Context(TRAINING=1):
    model(Tensor.randn(8, 4)).square().sum().backward()
    optimizer.step()
weights = [each.numpy() for each in nn.state.get_parameters(model)]
"""

# Every method of updating averages the gradients. For START see
# tests/adapters/test_small_training.py.
UPDATES = """\
from tinygrad import Context, Tensor, TinyJit, nn
from tinygrad.engine.jit import JitError

weight = Tensor([1.0, 1.0])
optimizer = ddl.DistributedOptimizer(nn.optim.SGD([weight], lr=0.5))
steps = Steps(weight.numpy)


def backward():
    optimizer.zero_grad()
    (weight * (rank + 1)).sum().backward()


with Context(TRAINING=1):
    backward()
    optimizer.step()
    steps.taken(0.5)
    backward()
    Tensor.realize(*optimizer.schedule_step())
    steps.taken(0.5)

    @TinyJit
    def step():
        backward()
        optimizer.step()

    step()
    steps.taken(0.5)
    try:
        step()
    except JitError as error:  # what is captured would contain the values of this step
        assert "during JIT capture" in str(error)
    else:
        raise AssertionError("captured")
"""
