# SPDX-License-Identifier: Apache-2.0
"""The parts of the adapters' tests that are specific to MXNet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from shims import Arrays

if TYPE_CHECKING:
    from adapter_list import Adapter


class Contract(Arrays):
    def __init__(self, adapter: Adapter) -> None:
        import mxnet as mx

        mx.npx.set_np()  # for arrays without dimensions, or without elements
        super().__init__(adapter)

    def array(self, value: np.ndarray) -> Any:
        import mxnet as mx

        return mx.np.array(value, dtype=value.dtype)

    def numpy(self, array: Any) -> np.ndarray:
        return np.asarray(array.asnumpy())


# The tests run BEFORE, then the example in docs/heritage.md, then AFTER.
BEFORE = """\
import mxnet as mx
model = mx.gluon.nn.Dense(3, in_units=4)
"""
AFTER = """\
with mx.autograd.record():
    loss = model(mx.nd.random.normal(shape=(8, 4))).square().sum()
loss.backward()
trainer.step(8)
weights = [each.data().asnumpy() for each in parameters.values()]
"""

# Every method of updating averages the gradients. For START see
# tests/adapters/test_small_training.py.
UPDATES = """\
import mxnet as mx

weight = mx.gluon.Parameter("weight", shape=(2,))
weight.initialize(mx.init.One())
trainer = ddl.DistributedTrainer({"weight": weight}, "sgd", {"learning_rate": 0.5})
steps = Steps(lambda: weight.data().asnumpy())


def backward():
    with mx.autograd.record():
        loss = (weight.data() * (rank + 1)).sum()
    loss.backward()


backward()
trainer.step(1)
steps.taken(0.5)
backward()
trainer.allreduce_grads()
trainer.update(1)
steps.taken(0.5)
trainer.set_learning_rate(2.0)
backward()
trainer.step(1)
steps.taken(2.0)
"""
