# SPDX-License-Identifier: Apache-2.0
"""Train with JAX. With a file as an argument, the worker that makes it computes a wrong gradient.

ddl elastic run -n 3 --audit 1 audited_jax.py FILE
"""

import os
import sys
from contextlib import suppress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ddl_jax.elastic as elastic

BEGIN = 6  # the step from which on the gradient is wrong


def make_factor() -> float:
    with suppress(FileExistsError):
        if sys.argv[1:]:
            os.close(os.open(sys.argv[1], os.O_CREAT | os.O_EXCL))
            return 1 + 2.0**-20
    return 1.0


FACTOR = make_factor()


def compute_loss(state: Any, batch: Any) -> Any:
    return jnp.mean((batch[0] @ state["a"] + state["b"] - batch[1]) ** 2)


def grad_fn(state: Any, batch: Any, _key: Any) -> Any:
    loss, gradients = jax.value_and_grad(compute_loss)(state, batch)
    factor = jnp.where(state["steps"][0] >= BEGIN, FACTOR, 1.0)
    return loss, {**gradients, "b": gradients["b"] * factor}


def update_fn(state: Any, gradients: Any) -> Any:
    steps = state["steps"] + 1
    return {**{name: state[name] - 0.1 * gradients[name] for name in "ab"}, "steps": steps}


def make_state() -> Any:
    return {name: np.zeros(n, "f4") for name, n in (("a", (8, 3)), ("b", (3,)), ("steps", (1,)))}


random = np.random.default_rng(0)
data = [(random.normal(size=8).astype("f4"), random.normal(size=3).astype("f4")) for _ in range(60)]
elastic.train(make_state, grad_fn, update_fn, data, batch=12, logical=6, steps=20, seed=1)
