# SPDX-License-Identifier: Apache-2.0
"""Train a small convolutional network to read handwritten digits in JAX, with workers that may die.

    python examples/elastic_digits_jax.py                        as many workers as are useful here
    python examples/elastic_digits_jax.py --workers 4 --kill 2   two of four are killed meanwhile

The network has batch norm and dropout, and images are shifted at random. No part of the program
depends on the number of workers. The hash of the final state is the same for any number of workers
and any deaths.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from sklearn.datasets import load_digits

import ddl_jax.elastic as elastic

TEST_IMAGES = 360
RATE, DECAY, BETAS = 3e-3, 0.01, (0.9, 0.999)
NORMS = {"first": 16, "second": 32}  # the layers with batch norm, and their channels
KEPT = 0.9  # share of the running statistics that each step keeps


class Digits:
    """The images for training, each shifted by up to one pixel at random."""

    def __init__(self, images: Any, labels: Any) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        shifts = random.randint(-1, 1), random.randint(-1, 1)
        return np.roll(self.images[index], shifts, (0, 1)), self.labels[index]


def make_state() -> dict[str, Any]:
    """Return the initial state as NumPy arrays, since JAX must not compute anything before the
    workers start."""
    random = np.random.default_rng(7)
    shapes = {"first": (3, 3, 1, 16), "second": (3, 3, 16, 32), "last": (32 * 4 * 4, 10)}
    weights = {
        name: random.normal(0, (2 / np.prod(shape[:-1])) ** 0.5, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    zeros = {name: np.zeros_like(weight) for name, weight in weights.items()}
    return {
        "weights": weights,
        "statistics": {
            name: (np.zeros(size, np.float32), np.ones(size, np.float32))
            for name, size in NORMS.items()
        },
        "moments": (zeros, zeros),
        "step": np.int32(0),
    }


def network(weights: Any, statistics: Any, images: Any, key: Any) -> tuple[Any, Any]:
    """Return the outputs, and new statistics. It is in training if there is a key."""
    values, updated = images[..., None], {}
    for name in NORMS:
        values = lax.conv_general_dilated(
            values, weights[name], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        mean, variance = old = statistics[name]
        if key is not None:
            mean, variance = values.mean((0, 1, 2)), values.var((0, 1, 2))
        updated[name] = tuple(
            KEPT * a + (1 - KEPT) * b for a, b in zip(old, (mean, variance), strict=True)
        )
        values = jax.nn.relu((values - mean) * lax.rsqrt(variance + 1e-5))
    values = lax.reduce_window(values, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    if key is not None:
        values = values * jax.random.bernoulli(key, 0.8, values.shape) / 0.8
    return values.reshape(len(values), -1) @ weights["last"], updated


def grad_fn(state: Any, batch: Any, key: Any) -> Any:
    """Return ((loss, statistics), gradients) of one share."""
    images, labels = batch

    def loss(weights: Any) -> Any:
        outputs, statistics = network(weights, state["statistics"], images, key)
        chances = jax.nn.log_softmax(outputs)
        return -jnp.take_along_axis(chances, labels[:, None], 1).mean(), statistics

    return jax.value_and_grad(loss, has_aux=True)(state["weights"])


def update_fn(state: Any, gradients: Any, statistics: Any) -> Any:
    """Do a step of AdamW."""
    step = state["step"] + 1
    means, squares = (
        jax.tree.map(lambda m, g, b=beta, p=power: b * m + (1 - b) * g**p, moments, gradients)
        for beta, power, moments in zip(BETAS, (1, 2), state["moments"], strict=True)
    )

    def change(weight: Any, mean: Any, square: Any) -> Any:
        mean, square = mean / (1 - BETAS[0] ** step), square / (1 - BETAS[1] ** step)
        return weight - RATE * (mean / (jnp.sqrt(square) + 1e-8) + DECAY * weight)

    return {
        "weights": jax.tree.map(change, state["weights"], means, squares),
        "statistics": statistics,
        "moments": (means, squares),
        "step": step,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network to read digits.")
    parser.add_argument("--workers", default="1:16", help='a number, or "min:max"')
    parser.add_argument("--passes", type=int, default=4)
    parser.add_argument("--kill", type=int, default=0, metavar="N", help="kill N workers meanwhile")
    arguments = parser.parse_args()

    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)
    labels = digits.target.astype(np.int32)
    job = elastic.Job(
        make_state(),
        grad_fn,
        update_fn,
        Digits(images[TEST_IMAGES:], labels[TEST_IMAGES:]),
        batch=64,
        logical=16,
        workers=arguments.workers,
        passes=arguments.passes,
        seed=7,
    )
    state = job.train(Killer(arguments.kill))

    outputs, _ = network(state["weights"], state["statistics"], images[:TEST_IMAGES], None)
    right = np.asarray(outputs).argmax(1) == labels[:TEST_IMAGES]
    report = job.report()
    print(
        f"accuracy {100 * right.mean():.2f} %  loss {report['loss']:.4f}"
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
