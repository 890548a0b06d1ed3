# SPDX-License-Identifier: Apache-2.0
"""Elastic training with TensorFlow: ddl_elastic's adapter for tensorflow, for custom loops. Keras
models can also use ddl_keras.elastic.

    import ddl_tensorflow.elastic as elastic

    @tf.function
    def compute(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        return loss, tape.gradient(loss, model.trainable_variables)

    job = elastic.Job(model, optimizer, batch=256, logical=16)
    for step in job.steps(data, passes=10):
        for x, y in step:                     # this process's shares of the step
            step.backward(compute(x, y))
        optimizer.apply(job.gradients, model.trainable_variables)

docs/elastic/ explains the guarantees, and what a program must not do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

import ddl_core
from ddl_elastic.storage.saving import policy_find
from ddl_elastic.worker import joining
from ddl_elastic.worker.loop import Loop
from ddl_tensorflow.elastic.adapter import TensorFlowAdapter
from ddl_tensorflow.elastic.pins import pin, seed

__all__ = ["Adapter", "Job", "pin", "preload", "seed"]

Adapter = TensorFlowAdapter  # the name by which ddl_elastic finds it


class Job(Loop):
    """An elastic job with its own training loop.

    model       a tf.Module or Keras model whose variables exist
    optimizer   an object with `variables`, such as a Keras optimizer; the job builds it if needed
    generators  random generators that shares use and that are not attributes of the model's modules
    batch, logical, seed, threads, comm, watchdog, checkpoint, every, keep: see docs/elastic/
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        *,
        batch: int,
        logical: int,
        seed: int = 0,
        threads: int = 1,
        generators: Sequence[tf.random.Generator] = (),
        comm: ddl_core.Comm | None = None,
        checkpoint: str | None = None,
        every: int = 100,
        keep: int = 3,
        **options: Any,
    ) -> None:
        pin(threads)
        self._adapter = TensorFlowAdapter(model, optimizer, generators)
        options["policy"] = policy_find(checkpoint, every, keep)
        joined = {"comm": comm} if comm else joining.join()
        super().__init__(
            self._adapter, **joined, batch=batch, logical=logical, seed=seed, **options
        )

    @property
    def gradients(self) -> list[tf.Tensor]:
        """The gradients of model.trainable_variables for the whole batch, after all shares."""
        return self._adapter.gradients

    @property
    def random_seed(self) -> tf.Tensor:
        """The share's seed, two numbers for tf.random.stateless_uniform and similar functions. Pass
        it to a tf.function as an argument."""
        return self._adapter.random_seed


def preload() -> None:
    """Do nothing: importing tensorflow loads all that training needs."""
