# SPDX-License-Identifier: Apache-2.0
"""Train a small convolutional network with Keras to read handwritten digits, on any number of
processes and any backend of Keras.

    python examples/keras_digits.py                     one process
    ddlrun -n 2 python examples/keras_digits.py         two
    mpirun -n 2 python examples/keras_digits.py         two
    KERAS_BACKEND=torch ddlrun -n 2 python examples/keras_digits.py

The data are the 1797 images of 8 x 8 pixels that come with scikit-learn. The lines marked (1), (2)
and (3) make it train on many processes; the rest is the same as for one process.
"""

from __future__ import annotations

import argparse
import sys

import keras
import numpy as np
from sklearn.datasets import load_digits

import ddl_keras as ddl

TEST_IMAGES = 360
BATCH = 32  # images of all processes per step
RATE = 0.05


def main() -> int:
    parser = argparse.ArgumentParser(description="Train a small Keras network to read digits.")
    parser.add_argument("--epochs", type=int, default=15, metavar="N")
    parser.add_argument("--jit", action="store_true", help="compile the training step with XLA")
    parser.add_argument("--save", metavar="FILE", help="write the trained model as .keras")
    arguments = parser.parse_args()

    ddl.init()  # (1) join the other processes
    if BATCH % ddl.size():
        sys.exit(f"a batch of {BATCH} cannot be shared equally by {ddl.size()} processes")
    keras.utils.set_random_seed(0)
    (images, labels), test = load()
    steps = len(images) // BATCH * BATCH  # an incomplete batch at the end is left out
    images, labels = images[:steps], labels[:steps]
    mine = slice(ddl.rank(), None, ddl.size())  # (2) train on this process's part of the images

    model = network()
    rate = keras.optimizers.schedules.CosineDecay(RATE, arguments.epochs * steps // BATCH)
    optimizer = keras.optimizers.SGD(rate, momentum=0.9)
    model.compile(
        ddl.DistributedOptimizer(optimizer),  # (3) average the gradients of all processes
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile="auto" if not arguments.jit else True,
    )
    callbacks = [ddl.callbacks.BroadcastModel(), ddl.callbacks.AverageMetrics()]
    if arguments.save:
        callbacks.append(ddl.callbacks.Checkpoint(arguments.save))
    history = model.fit(
        images[mine],
        labels[mine],
        batch_size=BATCH // ddl.size(),
        epochs=arguments.epochs,
        callbacks=callbacks,
        verbose=0,
    )
    _, accuracy = model.evaluate(*test, verbose=0)
    if ddl.rank() == 0:
        print(
            f"accuracy {100 * accuracy:.2f} %  loss {history.history['loss'][-1]:.4f}"
            f"  {ddl.size()} processes, batch {BATCH}, {keras.backend.backend()}"
        )
    ddl.shutdown()
    return 0


def load() -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """Return images, scaled to values from 0 to 1, and their labels: for training, and for the
    test."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = digits.images[order, :, :, None].astype(np.float32) / 16
    labels = digits.target[order]
    return (images[TEST_IMAGES:], labels[TEST_IMAGES:]), (
        images[:TEST_IMAGES],
        labels[:TEST_IMAGES],
    )


def network() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
