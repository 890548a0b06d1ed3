# SPDX-License-Identifier: Apache-2.0
"""Train a small convolutional network to read handwritten digits with a custom loop in TensorFlow,
on processes that may die.

    python examples/elastic_digits_tensorflow.py                              one process
    ddl elastic run -n 4 examples/elastic_digits_tensorflow.py                four
    ddl elastic run -n 4 examples/elastic_digits_tensorflow.py --kill 2       two are killed

The network has batch norm and dropout, and images are shifted at random. The final state is the
same for any number of processes and any deaths.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits

import ddl_tensorflow.elastic as elastic

TEST_IMAGES = 360


class Digits:
    """The images for training, each shifted by up to one pixel at random."""

    def __init__(self, images: Any, labels: Any) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        shifts = random.randint(-1, 1), random.randint(-1, 1)
        return np.roll(self.images[index], shifts, (0, 1)), self.labels[index]


def norm() -> layers.Layer:
    """Return batch norm for a short training: its averages adapt faster than by default."""
    return layers.BatchNormalization(momentum=0.9)


def make_model() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            *(layers.Conv2D(16, 3, padding="same"), norm(), layers.ReLU()),
            *(layers.Conv2D(32, 3, padding="same"), norm(), layers.ReLU()),
            *(layers.MaxPooling2D(), layers.Flatten(), layers.Dropout(0.2), layers.Dense(10)),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network to read digits.")
    parser.add_argument("--passes", type=int, default=4)
    parser.add_argument("--kill", type=int, default=0, metavar="N", help="kill N processes")
    arguments = parser.parse_args()

    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[..., None]
    labels = digits.target.astype(np.int32)
    data = Digits(images[TEST_IMAGES:], labels[TEST_IMAGES:])

    elastic.pin(threads=1)  # before TensorFlow computes anything
    keras.utils.set_random_seed(7)
    model, optimizer = make_model(), keras.optimizers.AdamW(3e-3)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def compute(inputs: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(targets, model(inputs, training=True))
        return loss, tape.gradient(loss, model.trainable_variables)

    job = elastic.Job(model, optimizer, batch=64, logical=16, seed=7)
    for step in job.steps(data, passes=arguments.passes):
        for inputs, targets in step:
            step.backward(compute(inputs, targets))
        optimizer.apply(job.gradients, model.trainable_variables)
        if step.number + 1 in range(15, 15 * arguments.kill + 1, 15) and job.is_writer:
            os.kill(os.getpid(), signal.SIGKILL)

    if job.is_writer:
        right = model(images[:TEST_IMAGES]).numpy().argmax(1) == labels[:TEST_IMAGES]
        state = hashlib.sha256(b"".join(each.numpy().tobytes() for each in model.weights))
        print(
            f"accuracy {100 * right.mean():.2f} %  state {state.hexdigest()[:16]}", file=sys.stderr
        )
    job.close()


if __name__ == "__main__":
    main()
