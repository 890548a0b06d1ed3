# SPDX-License-Identifier: Apache-2.0
"""Train a small network with a custom training loop in TensorFlow, on any number of processes.

    python examples/tf_custom_loop.py                   one process
    ddlrun -n 2 python examples/tf_custom_loop.py       two
    mpirun -n 2 python examples/tf_custom_loop.py       two

The data are the 1797 images of handwritten digits that come with scikit-learn. The lines marked
(1) to (4) make it train on many processes; the rest is the same as for one process.
"""

from __future__ import annotations

import argparse
import sys

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import ddl_tensorflow as ddl

TEST_IMAGES = 360
BATCH = 32  # images of all processes per step
RATE = 0.002


def main() -> int:
    parser = argparse.ArgumentParser(description="Train a small network to read digits.")
    parser.add_argument("--epochs", type=int, default=12, metavar="N")
    parser.add_argument("--jit", action="store_true", help="compile the training step with XLA")
    arguments = parser.parse_args()

    ddl.init()  # (1) join the other processes
    if BATCH % ddl.size():
        sys.exit(f"a batch of {BATCH} cannot be shared equally by {ddl.size()} processes")
    digits = load_digits()
    shuffled = np.random.default_rng(0).permutation(len(digits.target))
    images = tf.constant(digits.images[shuffled].reshape(-1, 64) / 16, tf.float32)
    labels = tf.constant(digits.target[shuffled])
    test, train = np.split(np.arange(len(shuffled)), [TEST_IMAGES])

    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)]
    )
    optimizer = keras.optimizers.Adam(RATE)
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # (2) start from the same weights
    ddl.broadcast_parameters([*model.weights, *optimizer.variables])

    @tf.function(jit_compile=arguments.jit)
    def step(inputs: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        with ddl.DistributedGradientTape() as tape:  # (3) average the gradients of all processes
            loss = loss_of(targets, model(inputs, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    shuffle = np.random.default_rng(1)
    for _ in range(arguments.epochs):
        order = shuffle.permutation(train)
        for start in range(0, len(order) - BATCH + 1, BATCH):
            mine = order[start : start + BATCH][ddl.rank() :: ddl.size()]  # (4) this process's part
            loss = step(tf.gather(images, mine), tf.gather(labels, mine))

    right = tf.argmax(model(tf.gather(images, test)), 1) == tf.gather(labels, test)
    metrics = ddl.average_metrics({"loss": loss})
    if ddl.rank() == 0:
        accuracy = 100 * float(tf.reduce_mean(tf.cast(right, tf.float32)))
        print(
            f"accuracy {accuracy:.2f} %  loss {metrics['loss']:.4f}"
            f"  {ddl.size()} processes, batch {BATCH}"
        )
    ddl.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
