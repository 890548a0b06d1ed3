# SPDX-License-Identifier: Apache-2.0
"""Programs with hidden state for Keras and JAX, as in cases.py."""

import sys
import time
from typing import Any

import numpy as np
from cases import CASES, Samples, case


@case(
    "callback of Keras",
    r"ReduceLROnPlateau.*(also|not part)",
    source="keras-team/keras#9462, keras-team/keras#14862: the states of callbacks are lost",
)
def callback_of_keras() -> None:
    import keras

    import ddl_keras.elastic as elastic

    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    plateau = keras.callbacks.ReduceLROnPlateau("loss", 0.7, 3, min_delta=10.0)
    x = Samples(16).x
    elastic.fit(
        model, elastic.Arrays(x, x[:, :1]), batch=8, logical=4, epochs=12, callbacks=[plateau]
    )


@case("metrics of Keras", is_right=True)
def metrics_of_keras() -> None:
    import keras

    import ddl_keras.elastic as elastic

    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dropout(0.1), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    x = Samples(16).x
    elastic.fit(model, elastic.Arrays(x, x[:, :1]), batch=8, logical=4, epochs=12)


@case(
    "key of JAX",
    r"time",
    source="jax-ml/jax#1141: PRNGKey(int(time.time())) is fixed when the function is traced",
)
def key_of_jax() -> None:
    import jax

    import ddl_jax.elastic as elastic

    def loss(weights: Any, x: Any, y: Any, key: Any) -> Any:
        x = x + 0.1 * jax.random.normal(key, x.shape)
        return ((x @ weights - y) ** 2).mean()

    def grad_fn(state: Any, batch: Any, key: Any) -> Any:
        x, y = batch
        own = jax.random.key(time.time_ns() % 2**31)
        return jax.value_and_grad(loss)(state["weights"], x, y, own)

    def update_fn(state: Any, gradient: Any) -> Any:
        return {"weights": state["weights"] - 0.1 * gradient}

    x = Samples().x
    data = list(zip(x, x[:, :1], strict=True))
    state = {"weights": np.zeros((8, 1), np.float32)}
    elastic.train(state, grad_fn, update_fn, data, batch=8, logical=4, passes=4)


if __name__ == "__main__":
    CASES[sys.argv[1]].run()
