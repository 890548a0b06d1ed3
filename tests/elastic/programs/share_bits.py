# SPDX-License-Identifier: Apache-2.0
"""What the bits of a share depend on: prints hashes of one share's loss and gradients.

    share_bits.py FRAMEWORK [--threads N] [--cores N] [--repeat N] [--reversed]

for a convolutional network with batch norm and dropout, an MLP, attention, and an MLP with denormal
numbers. FRAMEWORK is jax or tensorflow.
"""

import argparse
import hashlib
import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from ddl_elastic.base import environment

Case = tuple[str, dict[str, Any], Any]


def make_cases() -> dict[str, Case]:
    random = np.random.default_rng(0)

    def make(*shape: int, scale: float = 1.0) -> Any:
        values = random.standard_normal(shape) / np.sqrt(np.prod(shape[:-1]))
        return (values * scale).astype(np.float32)

    images = make(16, 32, 32, 3, scale=50)
    wide = {"a": make(3072, 1024), "b": make(1024, 1024), "c": make(1024, 10)}
    scales = {"a": 1e-20, "b": 1e-19, "c": 1}
    return {
        "convolution": (
            "convolve",
            {"a": make(3, 3, 3, 32), "b": make(3, 3, 32, 64), "c": make(16 * 16 * 64, 10)},
            images,
        ),
        "mlp": ("perceive", wide, make(64, 32, 32, 3, scale=50)),
        "attention": (
            "relate",
            {**{name: make(256, 256) for name in "abc"}, "d": make(256, 512)},
            make(8, 128, 256, scale=50),
        ),
        "denormals": (
            "perceive",
            {name: (wide[name] * scales[name]).astype(np.float32) for name in wide},
            make(4, 32, 32, 3),
        ),
    }


def jax_functions() -> tuple[dict[str, Any], Callable[..., Any]]:
    import jax
    import jax.numpy as jnp
    from jax import lax

    names = ("NHWC", "HWIO", "NHWC")

    def convolve(w: Any, x: Any) -> Any:
        h = lax.conv_general_dilated(x, w["a"], (1, 1), "SAME", dimension_numbers=names)
        mean, variance = h.mean((0, 1, 2)), h.var((0, 1, 2))
        h = jax.nn.relu((h - mean) * lax.rsqrt(variance + 1e-5))
        h = lax.conv_general_dilated(h, w["b"], (1, 1), "SAME", dimension_numbers=names)
        window = (1, 2, 2, 1)
        h = lax.reduce_window(jax.nn.relu(h), -jnp.inf, lax.max, window, window, "VALID")
        h = h * jax.random.bernoulli(jax.random.key(3), 0.8, h.shape) / 0.8
        return jax.nn.log_softmax(h.reshape(len(h), -1) @ w["c"])[:, 0].mean()

    def perceive(w: Any, x: Any) -> Any:
        return (jnp.tanh(jnp.tanh(x.reshape(len(x), -1) @ w["a"]) @ w["b"]) @ w["c"]).var()

    def relate(w: Any, x: Any) -> Any:
        q, k, v = (x @ w[name] for name in "abc")
        h = jax.nn.softmax(q @ k.swapaxes(1, 2) / 8) @ v
        return jnp.logaddexp(
            h / jnp.sqrt((h * h).mean(-1, keepdims=True) + 1e-6) @ w["d"], 0
        ).mean()

    def run(function: Any, weights: Any) -> Any:
        compiled = jax.jit(jax.value_and_grad(function))
        return lambda x: jax.tree.leaves(compiled(weights, x))

    return {"convolve": convolve, "perceive": perceive, "relate": relate}, run


def tensorflow_functions() -> tuple[dict[str, Any], Callable[..., Any]]:
    import tensorflow as tf

    def convolve(w: Any, x: Any) -> Any:
        h = tf.nn.conv2d(x, w["a"], 1, "SAME")
        h, *_ = tf.compat.v1.nn.fused_batch_norm(h, tf.ones(32), tf.zeros(32), epsilon=1e-5)
        h = tf.nn.relu(tf.nn.conv2d(tf.nn.relu(h), w["b"], 1, "SAME"))
        h = tf.nn.max_pool2d(h, 2, 2, "VALID")
        kept = tf.random.stateless_uniform(tf.shape(h), (1, 2)) < 0.8
        h = tf.reshape(tf.where(kept, h / 0.8, 0.0), (len(x), -1))
        return tf.reduce_mean(tf.nn.log_softmax(h @ w["c"])[:, 0])

    def perceive(w: Any, x: Any) -> Any:
        h = tf.tanh(tf.tanh(tf.reshape(x, (len(x), -1)) @ w["a"]) @ w["b"])
        return tf.math.reduce_variance(h @ w["c"])

    def relate(w: Any, x: Any) -> Any:
        q, k, v = (x @ w[name] for name in "abc")
        h = tf.nn.softmax(tf.matmul(q, k, transpose_b=True) / 8) @ v
        h = h / tf.sqrt(tf.reduce_mean(h * h, -1, keepdims=True) + 1e-6)
        return tf.reduce_mean(tf.nn.softplus(h @ w["d"]))

    def run(function: Any, weights: Any) -> Any:
        variables = {name: tf.Variable(weight) for name, weight in weights.items()}

        @tf.function
        def compute(x: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = function(variables, x)
            return [loss, *tape.gradient(loss, list(variables.values()))]

        return compute

    return {"convolve": convolve, "perceive": perceive, "relate": relate}, run


def main() -> None:
    parser = argparse.ArgumentParser(description="Print hashes of a share's gradients.")
    parser.add_argument("framework", choices=["jax", "tensorflow"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cores", type=int, help="that the process may use")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--reversed", action="store_true", help="the last case first")
    arguments = parser.parse_args()
    if arguments.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
    environment.limit_threads(arguments.threads)
    make = jax_functions if arguments.framework == "jax" else tensorflow_functions
    functions, run = make()
    cases = list(make_cases().items())
    found: dict[str, list[str]] = {}
    for name, (function, weights, x) in cases[::-1] if arguments.reversed else cases:
        compute = run(functions[function], weights)
        results = (
            b"".join(np.asarray(e).tobytes() for e in compute(x)) for _ in range(arguments.repeat)
        )
        found[name] = sorted({hashlib.sha256(result).hexdigest()[:16] for result in results})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
