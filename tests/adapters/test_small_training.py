# SPDX-License-Identifier: Apache-2.0
"""The optimizers of the smaller adapters: whatever a program calls to update, gradients are
averaged. Frameworks that are not installed are skipped; `make test-heritage` has them all."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Run

START = """
import numpy as np
import ddl_{name} as ddl

ddl.init()
rank, size = ddl.rank(), ddl.size()
MEAN = (size + 1) / 2  # of the ranks' gradients, which are rank + 1


class Steps:
    '''Asserts that each step goes by the rate times the mean gradient.'''

    def __init__(self, weights):
        self.weights, self.before = weights, weights()

    def taken(self, rate, times=1):
        self.before = self.before - times * rate * MEAN
        np.testing.assert_allclose(self.weights(), self.before, rtol=1e-6)

"""
PROGRAMS = {
    "mlx": """
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
""",
    "mxnet": """
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
""",
    "paddle": """
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
""",
    "tinygrad": """
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
""",
}


@pytest.mark.parametrize("framework", PROGRAMS)
def test_every_way_to_update(ddlrun: Run, tmp_path: Path, framework: str) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"there is no {framework}")
    text = START.replace("{name}", framework) + PROGRAMS[framework] + "print('right')\n"
    ended = ddlrun(2, text, limit=120).expect_success()
    assert [ended.lines(rank)[-1] for rank in (0, 1)] == ["right"] * 2
