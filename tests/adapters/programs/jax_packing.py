# SPDX-License-Identifier: Apache-2.0
"""Run by test_jax_training on 2 or more ranks that are joined by TCP, so that each is a host:
training with gradients in a wire format of fewer bytes."""

import functools
import pickle
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from checks import refused

import ddl_jax as ddl
from ddl_core.errors import InvalidArgument

ddl.init()
rank, size = ddl.rank(), ddl.size()
STEPS = 40
keys = jax.random.split(jax.random.key(5), 5)
inputs = jax.random.normal(keys[0], (size * 32, 64))
own = slice(rank * 32, rank * 32 + 32)


def make(first: Any, second: Any) -> dict[str, Any]:
    shapes = {
        "in": jax.random.normal(first, (64, 128)),
        "out": jax.random.normal(second, (128, 64)),
    }
    return {name: each / each.shape[0] ** 0.5 for name, each in shapes.items()} | {
        "bias": jnp.zeros(128),
        "scale": jnp.ones((), jnp.bfloat16),  # not packed
    }


def apply(weights: dict[str, Any], given: Any) -> Any:
    hidden = jnp.tanh(given @ weights["in"] + weights["bias"])
    return hidden @ weights["out"] * weights["scale"].astype(jnp.float32)


wanted = apply(make(keys[1], keys[2]), inputs)
start = make(keys[3], keys[4])


def loss(weights: Any, given: Any, targets: Any) -> Any:
    return ((apply(weights, given) - targets) ** 2).mean()


def optimizer_of(compression: Any) -> Any:
    return optax.chain(ddl.gradient_transformation(compression=compression), optax.adam(0.003))


@functools.partial(jax.jit, static_argnums=0)
def step(compression: Any, weights: Any, state: Any) -> Any:
    gradients = jax.grad(loss)(weights, inputs[own], wanted[own])
    updates, state = optimizer_of(compression).update(gradients, state, weights)
    return optax.apply_updates(weights, updates), state


def train(compression: Any, weights: Any, state: Any, steps: int) -> tuple[Any, Any]:
    for _ in range(steps):
        weights, state = step(compression, weights, state)
    every = jax.tree.map(lambda leaf: np.asarray(ddl.allgather(leaf[None])), weights)
    for name, each in every.items():
        assert all((part == each[0]).all() for part in each), f"{name} differs between ranks"
    return weights, state


def flat(weights: Any) -> list[Any]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(weights)]


def is_equal(one: Any, other: Any) -> bool:
    return all((a == b).all() for a, b in zip(flat(one), flat(other), strict=True))


before = float(loss(start, inputs, wanted))
exact = float(loss(train(None, start, optimizer_of(None).init(start), STEPS)[0], inputs, wanted))
for compression in ("int8", "int4"):
    weights, state = train(compression, start, optimizer_of(compression).init(start), STEPS)
    lost = (float(loss(weights, inputs, wanted)) - exact) / (before - exact)
    print(f"{rank} {compression}: {lost:.3%} of what f32 learns is lost", file=sys.stderr)
    assert abs(lost) < (0.001 if compression == "int8" else 0.01)
    residual = state[0].residual
    assert residual.size == 64 * 128 * 2 + 128 and abs(residual).max() > 0

    saved = pickle.dumps(jax.tree.map(np.asarray, (weights, state)))
    longer = train(compression, weights, state, 5)[0]
    weights, state = pickle.loads(saved)
    assert is_equal(train(compression, weights, state, 5)[0], longer)
    forgotten = (state[0]._replace(residual=np.zeros_like(residual)), *state[1:])
    assert not is_equal(train(compression, weights, forgotten, 5)[0], longer)

refused(
    InvalidArgument, "gradient_transformation", ddl.allreduce_gradients, start, compression="int8"
)
refused(InvalidArgument, "int8 or int4", ddl.gradient_transformation, compression="int2")
print("done")
ddl.shutdown()
