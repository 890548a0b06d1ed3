# SPDX-License-Identifier: Apache-2.0
"""Train a small convolutional network to read handwritten digits in Keras, with workers that may
die, on each of Keras' backends (KERAS_BACKEND: tensorflow, jax or torch).

    python examples/elastic_digits_keras.py                        as many workers as are useful
    python examples/elastic_digits_keras.py --workers 4 --kill 2   two of four are killed meanwhile
    ddl elastic run -n 4 examples/elastic_digits_keras.py --fit    in a custom program

The network has batch norm and dropout, and images are shifted at random. No part of the program
depends on the number of workers. The hash of the final state is the same for any number of workers
and any deaths.
"""

from __future__ import annotations

import argparse
import os
import signal
from typing import Any

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

import ddl_keras.elastic as elastic

TEST_IMAGES = 360
SHIFT = 1 / 8  # share of the image's width: one pixel


def norm() -> layers.Layer:
    """Return batch norm for a short training: its averages adapt faster than by default."""
    return layers.BatchNormalization(momentum=0.9)


def make_model() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.RandomTranslation(SHIFT, SHIFT, fill_mode="constant"),
            *(layers.Conv2D(16, 3, padding="same"), norm(), layers.ReLU()),
            *(layers.Conv2D(32, 3, padding="same"), norm(), layers.ReLU()),
            *(layers.MaxPooling2D(), layers.Flatten(), layers.Dropout(0.2), layers.Dense(10)),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(3e-3), loss, metrics=["accuracy"])
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network to read digits.")
    parser.add_argument("--workers", default="1:16", help='a number, or "min:max"')
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--kill", type=int, default=0, metavar="N", help="kill N workers meanwhile")
    parser.add_argument("--fit", action="store_true", help="be a worker of `ddl elastic run`")
    arguments = parser.parse_args()

    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[..., None]
    labels = digits.target.astype(np.int32)
    train = images[TEST_IMAGES:], labels[TEST_IMAGES:]
    test = images[:TEST_IMAGES], labels[:TEST_IMAGES]
    constants: dict[str, Any] = {"batch": 64, "logical": 16, "epochs": arguments.epochs, "seed": 7}

    if arguments.fit:
        keras.utils.set_random_seed(7)
        history = elastic.fit(make_model(), train, validation_data=test, **constants)
        print(f"accuracy {100 * history.history['val_accuracy'][-1]:.2f} %")
        return

    job = elastic.Job(make_model, train, workers=arguments.workers, **constants)
    model = job.train(Killer(arguments.kill))
    _, accuracy = model.evaluate(*test, verbose=0)
    report = job.report()
    print(
        f"accuracy {100 * accuracy:.2f} %  loss {report['loss']:.4f}"
        f"  {len(report['workers'])} workers, {report['recomputed']} shares recomputed"
        f"  {report['seconds']:.1f} s  state {report['hash'][:16]}"
    )


class Killer:
    """A callback that kills this number of workers one by one, each after 15 more steps."""

    def __init__(self, number: int) -> None:
        self.killed, self.number = 0, number

    def __call__(self, report: dict[str, Any]) -> None:
        if self.killed < self.number and report["steps"] >= 15 * (self.killed + 1):
            os.kill(report["workers"][self.killed]["pid"], signal.SIGKILL)
            self.killed += 1


if __name__ == "__main__":
    main()
