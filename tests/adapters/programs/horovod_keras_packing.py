# SPDX-License-Identifier: Apache-2.0
"""Run by test_horovod on 2 or more ranks that are joined by TCP, so that each is a host: Horovod's
modules for Keras, with gradients in a wire format of fewer bytes."""

import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from checks import refused
from keras_packing_task import STEPS, KerasTask, compiled, flat, make_model

import ddl_horovod.tensorflow as tf_hvd
import ddl_horovod.tensorflow.keras as hvd

hvd.init()
rank, size = hvd.rank(), hvd.size()
task = KerasTask(rank, size)


def make(compression: Any, **options: Any) -> keras.Model:
    return compiled(hvd.DistributedOptimizer, compression=compression, **options)


def train(model: keras.Model, steps: int, *callbacks: Any) -> keras.Model:
    task.fit(model, steps, *callbacks)
    weights = tf_hvd.allgather(flat(model.get_weights())[None]).numpy()
    assert (weights == weights[0]).all(), "ranks differ"
    return model


before = task.loss(make_model(9))
exact = task.loss(train(make(hvd.Compression.none), STEPS))
for compression in (hvd.Compression.int8, hvd.Compression.int4):
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model = train(make(compression), STEPS, broadcast)
    lost = (task.loss(model) - exact) / (before - exact)
    print(f"{rank} {compression.wire}: {lost:.3%} of what f32 learns is lost", file=sys.stderr)
    assert abs(lost) < (0.001 if compression.wire == "int8" else 0.01)
    residuals = flat(model.optimizer.variables[-4:])
    others = tf_hvd.allgather(residuals[None]).numpy()
    assert (others[0] != others[1]).any(), "residuals were broadcast"
    file = Path.cwd() / f"rank{rank}-{compression.wire}.weights.h5"
    model.save_weights(file)
    longer = flat(train(model, 5).get_weights())
    another = make(compression)
    another.optimizer.build(another.trainable_variables)
    another.load_weights(file)
    assert (flat(train(another, 5).get_weights()) == longer).all()

accumulating = train(make(hvd.Compression.int8, backward_passes_per_step=2), STEPS)
assert task.loss(accumulating) < before / 2

# A rank that has joined takes part with zeros; a local variable keeps its gradient.
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), compression=hvd.Compression.int4)
variables = [keras.Variable(np.ones(5000, np.float32)) for _ in range(2)]
optimizer.register_local_var(variables[1])
if rank > 0:
    optimizer.apply([tf.ones(5000) * size, tf.ones(5000) * size], variables)
    assert (variables[0].numpy() == 1 - (size - 1)).all(), variables[0].numpy()
    assert (variables[1].numpy() == 0).all(), variables[1].numpy()
tf_hvd.join()

packed = {"compression": hvd.Compression.int8}
optimizers = keras.optimizers
multi = optimizers.MultiOptimizer(optimizers.OptimizerMap(optimizers.SGD()))
tape, old = tf.GradientTape(), tf.compat.v1.train.GradientDescentOptimizer(1.0)
for text, function in {
    "only for the gradients": lambda: tf_hvd.allreduce(task.inputs, **packed),
    "needs a Keras optimizer": lambda: tf_hvd.DistributedGradientTape(tape, **packed),
    "use the DistributedOptimizer": lambda: tf_hvd.DistributedOptimizer(old, **packed),
    "supports neither Adasum nor": lambda: hvd.DistributedOptimizer(
        optimizers.SGD(), gradient_predivide_factor=2.0, **packed
    ),
    "does not support MultiOptimizer": lambda: hvd.DistributedOptimizer(multi, **packed),
}.items():
    refused(ValueError, text, function)
print("done")
hvd.shutdown()
