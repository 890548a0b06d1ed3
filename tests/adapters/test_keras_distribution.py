# SPDX-License-Identifier: Apache-2.0
"""Keras's distribution API over libddl."""

import re
from pathlib import Path

import pytest
from conftest import Run

EXAMPLE = Path(__file__).resolve().parent.parent.parent / "examples" / "keras_distribution.py"

PAGE = EXAMPLE.parent.parent / "docs" / "tensorflow.md"

MODEL_PARALLEL = """
import os
os.environ["KERAS_BACKEND"] = "jax"
import ddl_jax
ddl_jax.initialize()
import jax, keras, numpy as np

size = jax.process_count()
mesh = keras.distribution.DeviceMesh((1, size), ["batch", "model"])
layouts = keras.distribution.LayoutMap(mesh)
layouts[".*wide.*kernel"] = (None, "model")
parallel = keras.distribution.ModelParallel(
    layout_map=layouts, batch_dim_name="batch", auto_shard_dataset=False
)
keras.distribution.set_distribution(parallel)
keras.utils.set_random_seed(0)
layers = [keras.Input([4]), keras.layers.Dense(12, "tanh", name="wide"), keras.layers.Dense(1)]
model = keras.Sequential(layers)
model.compile(keras.optimizers.SGD(0.1), "mse")
inputs = np.random.default_rng(0).normal(size=[96, 4]).astype("float32")
options = {"batch_size": 24, "epochs": 3, "shuffle": False, "verbose": 0}
losses = model.fit(inputs, inputs.sum(1, keepdims=True), **options).history["loss"]
shard = model.layers[0].kernel.value.addressable_data(0)
print(shard.shape[1] * size, *losses)
ddl_jax.shutdown()
"""


@pytest.mark.slow
@pytest.mark.usefixtures("jax_native")
@pytest.mark.parametrize("many", [2, 3])
def test_data_parallel_trains_as_one_process_does(ddlrun: Run, many: int) -> None:
    losses = {}
    for size in (1, many):
        ended = ddlrun(size, EXAMPLE, limit=180).expect_success()
        losses[size] = [float(each) for each in re.findall(r"loss ([\d.]+)", ended.out)]
        weights = {line for rank in range(size) for line in ended.lines(rank) if "weights" in line}
        assert len(weights) == 1, weights
    assert losses[many] == pytest.approx(losses[1], abs=2e-4)
    assert losses[1][-1] < losses[1][0] / 2


@pytest.mark.slow
@pytest.mark.usefixtures("jax_native")
def test_model_parallel_splits_a_kernel(ddlrun: Run) -> None:
    printed = {}
    for size in (1, 2):
        ended = ddlrun(size, MODEL_PARALLEL, limit=180).expect_success()
        printed[size] = [float(each) for each in ended.lines(0)[-1].split()]
    assert printed[1][0] == printed[2][0] == 12
    assert printed[2] == pytest.approx(printed[1], rel=1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("jax_native")
def test_document(ddlrun: Run) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (shown,) = (block for block in blocks if "keras.distribution" in block)
    ddlrun(2, shown, limit=180).expect_success()
