# SPDX-License-Identifier: Apache-2.0
"""Change state that joining workers do not get, in the middle of a job: `law_frameworks.py
WHAT`."""

import sys
from typing import Any

import numpy as np

random = np.random.default_rng(1)
X = random.normal(size=(24, 6)).astype(np.float32)
Y = X[:, :1].copy()


def make_model() -> Any:
    import keras

    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(4, name="first"), keras.layers.Dense(1, name="last")]
    )


def train_keras(change: Any) -> None:
    import keras

    import ddl_keras.elastic as elastic

    model = make_model()
    model.compile(keras.optimizers.Adam(0.01, clipnorm=1.0), "mse")
    begin = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: change(model) if epoch == 1 else None
    )
    data = elastic.Arrays(X, Y)
    elastic.fit(model, data, callbacks=[begin], batch=8, logical=2, epochs=3)


def freeze(model: Any) -> None:
    model.get_layer("first").trainable = False


def set_option(model: Any) -> None:
    model.optimizer.clipnorm = 0.5


def train_tensorflow() -> None:
    import keras
    import tensorflow as tf

    import ddl_tensorflow.elastic as elastic

    elastic.pin(1)
    model, optimizer = make_model(), keras.optimizers.Adam(0.01)
    job = elastic.Job(model, optimizer, batch=8, logical=2)
    for step in job.steps(list(zip(X, Y, strict=True)), passes=3):
        if step.number == 3:
            freeze(model)
        for x, y in step:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            step.backward((loss, tape.gradient(loss, model.trainable_variables)))
        optimizer.apply(job.gradients, model.trainable_variables)


def train_jax() -> None:
    import jax

    import ddl_jax.elastic as elastic

    def grad_fn(state: Any, batch: Any, key: Any) -> Any:
        x, y = batch
        return jax.value_and_grad(lambda w: ((x @ w - y) ** 2).mean())(state["weights"])

    def update_fn(state: Any, gradient: Any) -> Any:
        return {"weights": state["weights"] - 0.1 * gradient, "momentum": gradient}

    state = {"weights": np.zeros((6, 1), np.float32)}
    data = list(zip(X, Y, strict=True))
    elastic.train(state, grad_fn, update_fn, data, batch=8, logical=2, passes=3)


CASES = {
    "keras frozen": lambda: train_keras(freeze),
    "keras option": lambda: train_keras(set_option),
    "tensorflow frozen": train_tensorflow,
    "jax added": train_jax,
}

if __name__ == "__main__":
    CASES[sys.argv[1]]()
