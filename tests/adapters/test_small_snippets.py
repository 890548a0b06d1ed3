# SPDX-License-Identifier: Apache-2.0
"""What docs/heritage.md shows of each framework trains on two ranks, with what it assumes added.

Frameworks that are not installed are skipped; `make test-heritage` has them all.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Run

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "heritage.md"
BEFORE = {
    "chainer": """
import chainer
import numpy as np
model = chainer.links.Classifier(chainer.links.Linear(4, 3))
images = np.random.rand(64, 4).astype("f")
train = chainer.datasets.TupleDataset(images, (images.sum(1) > 2).astype("i"))
iterator = chainer.iterators.SerialIterator(train, 8, repeat=False, shuffle=False)
evaluator = chainer.training.extensions.Evaluator(iterator, model)
""",
    "pytensor": """
import numpy as np
import pytensor
import pytensor.tensor as pt
x, y = pt.dmatrix("x"), pt.dvector("y")
w = pytensor.shared(np.random.rand(3))
loss = ((x @ w - y) ** 2).mean()
""",
    "caffe": """
from pathlib import Path
Path("net").write_text('''
layer { name: "x" type: "DummyData" top: "x" dummy_data_param {
  shape { dim: 8 dim: 4 } data_filler { type: "gaussian" } } }
layer { name: "y" type: "InnerProduct" bottom: "x" top: "y" inner_product_param {
  num_output: 2 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "Reduction" bottom: "y" top: "loss" loss_weight: 1
  reduction_param { operation: SUMSQ } }
''')
Path("solver.prototxt").write_text(
    'net: "net" base_lr: 0.001 lr_policy: "fixed" snapshot_prefix: "it" type: "SGD"'
)
""",
    "mlx": """
import mlx.core as mx
import mlx.optimizers as optim
from mlx import nn
from mlx.utils import tree_flatten
model = nn.Linear(4, 3)
images, labels = mx.random.normal((8, 4)), mx.array([0, 1, 2, 0, 1, 2, 0, 1])
def loss_of(model, images, labels):
    return nn.losses.cross_entropy(model(images), labels, reduction="mean")
""",
    "mxnet": """
import mxnet as mx
model = mx.gluon.nn.Dense(3, in_units=4)
""",
    "paddle": """
import paddle
model = paddle.nn.Linear(4, 3)
""",
    "tinygrad": """
from tinygrad import Context, Tensor, nn
model = nn.Linear(4, 3)
""",
}
AFTER = {  # steps, if the page shows none, and the weights
    "chainer": """
iterator = chainer.iterators.SerialIterator(train, 8)
updater = chainer.training.StandardUpdater(iterator, optimizer)
for _ in range(3):
    updater.update()
assert 0 <= evaluator()["main/accuracy"] <= 1
weights = [each.array for each in model.params()]
""",
    "pytensor": """
for _ in range(3):
    step(np.random.rand(16, 3), np.random.rand(16))
weights = [w.get_value()]
""",
    "caffe": """
assert solver.iter == 1000
assert Path("it_iter_1000.caffemodel").exists()
weights = [blob.data for layer in solver.net.params.values() for blob in layer]
""",
    "mlx": "weights = [model.weight, model.bias]",
    "mxnet": """
with mx.autograd.record():
    loss = model(mx.nd.random.normal(shape=(8, 4))).square().sum()
loss.backward()
trainer.step(8)
weights = [each.data().asnumpy() for each in parameters.values()]
""",
    "paddle": """
model(paddle.randn([8, 4])).square().sum().backward()
optimizer.step()
weights = model.parameters()
""",
    "tinygrad": """
with Context(TRAINING=1):
    model(Tensor.randn(8, 4)).square().sum().backward()
    optimizer.step()
weights = [each.numpy() for each in nn.state.get_parameters(model)]
""",
}
EQUAL = """
import numpy
texts = ddl.allgather_object(b"".join(numpy.array(each).tobytes() for each in weights))
assert len(texts) == 2 and len(set(texts)) == 1
print("right")
"""


@pytest.mark.parametrize("framework", BEFORE)
def test_snippet(ddlrun: Run, framework: str) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"there is no {framework}")
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (shown,) = (block for block in blocks if f"import ddl_{framework} as ddl" in block)
    program = BEFORE[framework] + shown + AFTER[framework] + EQUAL
    ended = ddlrun(2, program, env={"GLOG_minloglevel": "2"}, limit=120).expect_success()
    assert [ended.lines(rank)[-1] for rank in (0, 1)] == ["right"] * 2
