# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs with JAX, for tests: the argument is a case as JSON; prints what came of it.

In a worker of `ddl elastic run` it joins the others, else it starts workers. `kill` lists members
that kill themselves in the middle; `patient`: see patient_samples.py.
"""

import json
import os
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dying_samples import DyingSamples
from patient_samples import PatientSamples

import ddl_jax.elastic as elastic
from ddl_elastic.frameworks.protocol import digest
from ddl_jax.elastic import state as elastic_state

random = np.random.default_rng(1)
DATA = [
    {"x": random.normal(size=12).astype(np.float32), "y": np.float32(number % 3)}
    for number in range(50)
]


OPTIONS = ("checkpoint", "every", "passes", "steps", "local_steps")


def make_state() -> Any:
    first, second, rest = jax.random.split(jax.random.key(2), 3)
    return {
        "first": jax.random.normal(first, (12, 32)) / 4,
        "second": (jax.random.normal(second, (32, 1)) / 6).astype(jnp.bfloat16),
        "key": rest,
        "seen": jnp.int32(0),
        "mean": jnp.zeros(32),
    }


def grad_fn(state: Any, batch: Any, key: Any) -> Any:
    def loss(weights: Any) -> Any:
        hidden = jnp.tanh(batch["x"] @ weights["first"])
        kept = jax.random.bernoulli(key, 0.8, hidden.shape)
        found = (hidden * kept).astype(jnp.bfloat16) @ weights["second"]
        error = found[:, 0].astype(jnp.float32) - batch["y"]
        return (error**2).mean(), (hidden.mean(0), jnp.int32(len(error)))

    return jax.value_and_grad(loss, has_aux=True)({n: state[n] for n in ("first", "second")})


def update_fn(state: Any, gradients: Any, extra: Any) -> Any:
    mean, count = extra
    key, own = jax.random.split(state["key"])
    weights = {
        name: state[name] - (0.05 * gradient).astype(state[name].dtype)
        for name, gradient in gradients.items()
    }
    noise = 1e-3 * jax.random.normal(own, state["first"].shape)
    weights["first"] = weights["first"] + noise
    return {**weights, "key": key, "seen": state["seen"] + count, "mean": mean}


def main(case: dict[str, Any]) -> None:
    if case.get("starts"):
        jnp.zeros(3).block_until_ready()
    dies = case.get("kills", 0) > int(os.environ.get("DDL_ELASTIC_AGENT", "0 99").split()[1])
    state = elastic.train(
        make_state,
        case.get("grad_fn", grad_fn),
        update_fn,
        PatientSamples(DATA) if case.get("patient") else DyingSamples(DATA, dies),
        batch=8,
        logical=4,
        workers=case.get("workers", 1),
        seed=3,
        progress=False,
        outer=elastic.Nesterov("first") if "local_steps" in case else None,
        **{name: case[name] for name in OPTIONS if name in case},
    )
    print("state", digest(elastic_state.save(state)), int(state["seen"]))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
