# SPDX-License-Identifier: Apache-2.0
"""Run by test_keras on 2 or more ranks that are joined by TCP, so that each is a host: training
with gradients in a wire format of fewer bytes."""

import sys
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
from checks import refused
from keras_packing_task import STEPS, KerasTask, compiled, flat, make_model

import ddl_keras as ddl
from ddl_core.errors import InvalidArgument

ddl.init()
rank, size = ddl.rank(), ddl.size()
task = KerasTask(rank, size)


def make(compression: Any, **options: Any) -> keras.Model:
    return compiled(ddl.DistributedOptimizer, compression=compression, **options)


def every(array: np.ndarray) -> np.ndarray:
    gathered = ddl.allgather(keras.ops.convert_to_tensor(array[None]))
    return np.array(keras.ops.convert_to_numpy(gathered))


def train(model: keras.Model, steps: int) -> keras.Model:
    task.fit(model, steps)
    weights = every(flat(model.weights))
    assert (weights == weights[0]).all(), "ranks differ"
    return model


def residuals(model: keras.Model) -> np.ndarray:
    return flat(model.optimizer.variables[-4:])


before = task.loss(make_model(9))
exact = task.loss(train(make(None), STEPS))
for compression in ("int8", "int4"):
    model = train(make(compression), STEPS)
    lost = (task.loss(model) - exact) / (before - exact)
    print(f"{rank} {compression}: {lost:.3%} of what f32 learns is lost", file=sys.stderr)
    assert abs(lost) < (0.001 if compression == "int8" else 0.01)
    assert len(model.optimizer.variables) == 2 + 2 * 4 + 4
    kept = residuals(model)
    assert len(kept) == 16576 and abs(kept).max() > 0
    ddl.broadcast_model(model)
    assert (residuals(model) == kept).all(), "residuals were broadcast"

    if compression == "int8":
        continue

    # A file has the residuals, and loads without libddl, too.
    file = Path.cwd() / f"rank{rank}-{compression}.keras"
    model.save(file)
    weights = file.with_suffix(".weights.h5")
    model.save_weights(weights)
    longer = flat(train(model, 5).weights)
    another = make(compression)
    another.optimizer.build(another.trainable_variables)
    another.load_weights(weights)
    assert (flat(train(another, 5).weights) == longer).all()
    another.load_weights(weights)
    for variable in another.optimizer.variables[-4:]:
        variable.assign(keras.ops.zeros(variable.shape))
    assert (flat(train(another, 5).weights) != longer).any()
    loaded = keras.models.load_model(file)
    assert len(loaded.optimizer.variables) == 2 + 2 * 4
    assert int(loaded.optimizer.iterations) == STEPS
    ddl.DistributedOptimizer(loaded.optimizer, compression=compression)
    assert not residuals(loaded).any()
    loaded.load_weights(file)
    assert (residuals(loaded) == kept).all()
    assert (flat(train(loaded, 5).weights) == longer).all()

    # The file of another rank.
    others = file.with_name(f"rank{(rank + 1) % size}-{compression}.weights.h5")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        another.load_weights(others)
    assert any("they begin with zeros" in str(each.message) for each in caught), caught
    assert not residuals(another).any()

# Batches that are accumulated, and gradients that are missing or not of float32.
accumulating = make("int8", backward_passes_per_step=2)
assert task.loss(train(accumulating, STEPS)) < before / 2
assert abs(residuals(accumulating)).max() > 0
variables = [keras.Variable(np.ones(5000, np.float32), dtype=d) for d in 3 * ["float32"]]
variables.append(keras.Variable(np.ones(10, np.float32), dtype="bfloat16"))
optimizer = ddl.DistributedOptimizer(keras.optimizers.SGD(1.0), op="sum", compression="int4")
gradients = [each.value * (rank + 1) for each in variables]
optimizer.apply([gradients[0], None, *gradients[2:]], variables)
total = size * (size + 1) // 2
for variable, change in zip(variables, (total, 0, total, total), strict=True):
    value = keras.ops.convert_to_numpy(keras.ops.cast(variable, "float32"))
    assert (value == 1 - change).all(), (value, change)

optimizers = keras.optimizers
scaling = optimizers.LossScaleOptimizer(optimizers.SGD())
multi = optimizers.MultiOptimizer(optimizers.OptimizerMap(optimizers.SGD()))
for text, wrong, compression in (
    ("f16, bf16, int8 or int4", "adam", "int2"),
    ("neither loss scaling nor", scaling, "int8"),
    ("a MultiOptimizer; use bf16", multi, "int8"),
):
    refused(InvalidArgument, text, ddl.DistributedOptimizer, wrong, compression=compression)
print("done")
ddl.shutdown()
