# SPDX-License-Identifier: Apache-2.0
"""Train with Keras's distribution API on JAX, over libddl. Each rank provides its part of each
batch.

    ddlrun -n 4 examples/keras_distribution.py

The loss is equal to that of one process with the whole batch.
"""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "jax"

import ddl_jax

ddl_jax.initialize()  # before jax and keras are imported

import jax  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402

RANK, SIZE = jax.process_index(), jax.process_count()
BATCH = 24  # of all ranks


def main() -> None:
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    keras.utils.set_random_seed(0)
    layers = [keras.Input([4]), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    inputs = np.random.default_rng(0).normal(size=[10 * BATCH, 4]).astype("float32")
    labels = inputs.sum(1, keepdims=True)
    part = np.arange(10 * BATCH).reshape(10, SIZE, -1)[:, RANK].ravel()
    options = {"batch_size": BATCH // SIZE, "epochs": 5, "shuffle": False, "verbose": 0}
    history = model.fit(inputs[part], labels[part], **options)
    for epoch, loss in enumerate(history.history["loss"]):
        if RANK == 0:
            print(f"epoch {epoch}: loss {loss:.4f}", flush=True)
    print("weights", sum(float(np.abs(each).sum()) for each in model.get_weights()))
    ddl_jax.shutdown()


if __name__ == "__main__":
    main()
