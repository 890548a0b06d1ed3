# SPDX-License-Identifier: Apache-2.0
"""The elastic module of each adapter, as a user with a strict type checker writes it."""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np
import tensorflow as tf
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

import ddl_jax.elastic
import ddl_keras.elastic
import ddl_tensorflow.elastic
import ddl_torch.elastic


def in_torch() -> None:
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    samples = TensorDataset(torch.ones(8, 4), torch.ones(8, 2))
    job = ddl_torch.elastic.Job(model, optimizer, batch=8, logical=4, buffers="first")
    for step in job.steps(samples, passes=2):
        for x, y in step:
            loss: Tensor = (model(x) - y).square().mean()
            step.backward(loss)
        optimizer.step()
        number: int = step.number
        print(number, job.is_writer)
    ddl_torch.elastic.Job(model, optimizer, batch=8)  # type: ignore[call-arg]
    ddl_torch.elastic.Job(model, optimizer, batch="8", logical=4)  # type: ignore[arg-type]
    ddl_torch.elastic.Job(model, optimizer, batch=8, logical=4, buffers="last")  # type: ignore[arg-type]
    job.close()


def in_tensorflow(model: Any, optimizer: Any) -> None:
    ddl_tensorflow.elastic.pin(threads=1)
    job = ddl_tensorflow.elastic.Job(model, optimizer, batch=8, logical=4, seed=7)
    data = ddl_keras.elastic.Arrays(np.ones((8, 4)), np.ones(8))
    for step in job.steps(data, steps=3):
        for x, y in step:
            with tf.GradientTape() as tape:
                loss = model(x) - y
            step.backward(tape.gradient(loss, model.trainable_variables))
        optimizer.apply(job.gradients)
    job.steps(data, pass_count=3)  # type: ignore[call-arg]
    job.close()


def in_jax(weights: jax.Array) -> None:
    def gradients(state: jax.Array, batch: jax.Array) -> jax.Array:
        return state - batch

    data = np.ones((8, 4))
    state = ddl_jax.elastic.train(weights, gradients, lambda s, g: s - g, data, batch=8, logical=4)
    print(state)
    ddl_jax.elastic.train(weights, gradients, gradients, data, bach=8)  # type: ignore[call-arg]
    job = ddl_jax.elastic.Job(weights, gradients, lambda s, g: s - g, data, batch=8, logical=4)
    print(job.train(), job.report())


def in_keras(model: keras.Model) -> None:
    data = ddl_keras.elastic.Arrays(np.ones((8, 4)), np.ones(8))
    history = ddl_keras.elastic.fit(model, data, batch=8, logical=4, epochs=2)
    print(history)
    ddl_keras.elastic.fit(model, data, batch=8, logical=4, epoch=2)  # type: ignore[call-arg]
    job = ddl_keras.elastic.Job(lambda: model, data, epochs=1, batch=8, logical=4)
    trained = job.train(lambda progress: print(progress["step"]))
    print(trained, job.report())
