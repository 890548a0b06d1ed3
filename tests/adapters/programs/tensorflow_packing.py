# SPDX-License-Identifier: Apache-2.0
"""Run by test_keras on 2 or more ranks that are joined by TCP, so that each is a host:
training with gradients in a wire format of fewer bytes."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import ddl_tensorflow as ddl
from ddl_core.errors import InvalidArgument

ddl.init()
rank, size = ddl.rank(), ddl.size()
STEPS, rate = 60, 0.3
inputs = tf.random.stateless_normal((size * 32, 64), [1, 1])
own = slice(rank * 32, rank * 32 + 32)


def make(seed: int) -> list[tf.Variable]:
    first = tf.random.stateless_normal((64, 128), [seed, 2]) / 8
    second = tf.random.stateless_normal((128, 64), [seed, 3]) / 128**0.5
    scale = tf.ones((), tf.float64)  # not packed
    return [tf.Variable(each) for each in (first, tf.zeros(128), second, scale)]


def apply(weights: list[tf.Variable], given: Any) -> Any:
    first, bias, second, scale = weights
    return tf.tanh(given @ first + bias) @ second * tf.cast(scale, tf.float32)


wanted = apply(make(7), inputs)


def loss(weights: list[tf.Variable]) -> float:
    return float(tf.reduce_mean((apply(weights, inputs) - wanted) ** 2))


class Training:
    def __init__(self, compression: Any) -> None:
        self.weights, self.compression = make(9), compression
        self.momenta = [tf.Variable(tf.zeros_like(each)) for each in self.weights]
        self.residual = ddl.gradient_residual(self.weights)
        states = {"weights": self.weights, "momenta": self.momenta, "residual": self.residual}
        self.checkpoint = tf.train.Checkpoint(**states)
        self._step = tf.function(self.step)

    def step(self) -> None:
        residual = self.residual if self.compression else None
        with ddl.DistributedGradientTape(compression=self.compression, residual=residual) as tape:
            error = tf.reduce_mean((apply(self.weights, inputs[own]) - wanted[own]) ** 2)
        gradients = tape.gradient(error, self.weights)
        for weight, momentum, gradient in zip(self.weights, self.momenta, gradients, strict=True):
            momentum.assign(0.9 * momentum + gradient)
            weight.assign_sub(tf.cast(rate, weight.dtype) * momentum)

    def run(self, steps: int, eagerly: bool = False) -> "Training":
        for _ in range(steps):
            (self.step if eagerly else self._step)()
        for each in self.weights:
            every = ddl.allgather(each[None]).numpy()
            assert all((part == every[0]).all() for part in every), "ranks differ"
        return self

    def values(self) -> np.ndarray:
        return np.concatenate([each.numpy().ravel() for each in self.weights])


before = loss(make(9))
exact = loss(Training(None).run(STEPS).weights)
for compression in ("int8", "int4"):
    training = Training(compression).run(STEPS)
    lost = (loss(training.weights) - exact) / (before - exact)
    print(f"{rank} {compression}: {lost:.3%} of what f32 learns is lost", file=sys.stderr)
    assert abs(lost) < (0.001 if compression == "int8" else 0.02)
    assert abs(training.residual.numpy()).max() > 0

    saved = training.checkpoint.write(str(Path.cwd() / f"rank{rank}-{compression}"))
    training.run(5)
    another = Training(compression).run(1, eagerly=True)
    another.checkpoint.read(saved).assert_consumed()
    assert (another.run(5).values() == training.values()).all()
    another.checkpoint.read(saved).assert_consumed()
    assert abs(another.run(5, eagerly=True).values() - training.values()).max() < 0.01
    another.checkpoint.read(saved).assert_consumed()
    another.residual.assign(tf.zeros_like(another.residual))
    assert (another.run(5).values() != training.values()).any()


def check_refusal(text: str, **options: Any) -> None:
    try:
        ddl.allreduce_gradients([tf.ones(10)], **options)
    except InvalidArgument as error:
        assert text in str(error), error
    else:
        raise AssertionError("not refused")


check_refusal("must be a variable of 10 float32", compression="int8")
check_refusal("f16, bf16, int8 or int4", compression="int2")
print("done")
ddl.shutdown()
