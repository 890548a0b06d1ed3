# SPDX-License-Identifier: Apache-2.0
"""ddl_jax, ddl_tensorflow and ddl_keras, as a user with a strict type checker writes them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import tensorflow as tf

import ddl_jax
import ddl_keras
import ddl_tensorflow


def loss(weights: jax.Array) -> jax.Array:
    return jnp.sum(weights)


ddl_jax.init()
x = jnp.ones(4)
y: jax.Array = ddl_jax.allreduce(x, op="min")
ddl_jax.allreduce(x, op="minimum")  # type: ignore[arg-type]
gradients = ddl_jax.allreduce_gradients({"w": x}, compression="f16")
ddl_jax.allreduce_gradients({"w": x}, compression="float16")  # type: ignore[arg-type]
value, gradient = ddl_jax.value_and_grad(loss)(x)
ranks: int = ddl_jax.size() - ddl_jax.rank()
half: ddl_jax.Communicator = ddl_jax.split(ranks % 2)
ddl_jax.allreduce(x, comm=half)
ddl_jax.shutdown()

ddl_tensorflow.init()
tensor = ddl_tensorflow.allreduce(tf.ones(4), op="average")
ddl_tensorflow.allreduce(tf.ones(4), op="avg")  # type: ignore[arg-type]
tape = ddl_tensorflow.DistributedGradientTape(tf.GradientTape(), op="sum", compression="bf16")
ddl_tensorflow.allreduce_gradients([tf.ones(4)], op="max")  # type: ignore[arg-type]

part: ddl_tensorflow.Communicator = ddl_tensorflow.split(0)
ddl_tensorflow.allreduce(tensor, comm=part.split(part.rank))
ddl_tensorflow.allreduce(tensor, comm=[0, 1])  # type: ignore[arg-type]

ddl_keras.init()
optimizer = ddl_keras.DistributedOptimizer(keras.optimizers.SGD(), compression="f16")
ddl_keras.DistributedOptimizer(keras.optimizers.SGD(), op="mean")  # type: ignore[arg-type]
callbacks = [ddl_keras.callbacks.AverageMetrics()]
among: int = ddl_keras.size() - ddl_keras.rank()
halves: ddl_keras.Communicator = ddl_keras.split(among % 2)
ddl_keras.split("half")  # type: ignore[call-overload]
ddl_keras.DistributedOptimizer(keras.optimizers.SGD(), comm=halves)
pair = ddl_keras.subset([0, 1])
nobody: None = ddl_keras.split(None)
