# SPDX-License-Identifier: Apache-2.0
"""Train a small network to read handwritten digits in JAX, on any number of processes, in two ways.

    python examples/jax_digits.py                       one process
    ddlrun -n 2 python examples/jax_digits.py           two, with ddl_jax's operations
    ddlrun -n 2 python examples/jax_digits.py --stock   two, with jax's sharding

The data are the 1797 images of 8 x 8 pixels that come with scikit-learn. In the first way each
process trains on its part of every batch, and ddl_jax averages the gradients. In the second way the
processes are one jax program: the batch is one array spread over all of them, and jax.jit inserts
the communication. It needs only ddl_jax.initialize().
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from itertools import pairwise
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import ddl_jax as ddl

TEST_IMAGES = 360
EPOCHS, BATCH, RATE, MOMENTUM, DECAY = 30, 64, 0.05, 0.9, 1e-3


def main() -> int:
    parser = argparse.ArgumentParser(description="Train a small network to read digits.")
    parser.add_argument("--stock", action="store_true", help="use jax's own sharding")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    arguments = parser.parse_args()
    start = time.monotonic()
    if arguments.stock:
        ddl.initialize()  # before jax is imported
    else:
        ddl.init()
    if BATCH % ddl.size():
        sys.exit(f"a batch of {BATCH} cannot be shared equally by {ddl.size()} processes")

    (images, labels), test = load()
    train = stock_training if arguments.stock else training
    parameters = train(images, labels, arguments.epochs)

    # All processes have trained the same network, to the last bit.
    digest = hashlib.sha256(b"".join(np.asarray(p).tobytes() for p in parameters)).digest()
    everyones = np.asarray(ddl.allgather(np.frombuffer(digest, np.uint8))).reshape(ddl.size(), -1)
    if (everyones != everyones[0]).any():
        print(f"rank {ddl.rank()}: the processes' weights differ", file=sys.stderr)
        return 1
    if ddl.rank() == 0:
        right = np.asarray(network(parameters, test[0])).argmax(1) == test[1]
        print(
            f"accuracy {100 * right.mean():.2f} %  {time.monotonic() - start:.1f} s"
            f"  {ddl.size()} process(es), batch {BATCH}  weights {digest.hex()[:16]}"
        )
    ddl.shutdown()
    return 0


def training(images: Any, labels: Any, epochs: int) -> Any:
    """Train with ddl_jax: each process has its own arrays."""
    import jax

    parameters = ddl.broadcast_parameters(fresh(jax.random.key(ddl.rank())))  # the same for all
    momenta = jax.tree.map(lambda p: 0 * p, parameters)
    loss_and_gradients = ddl.value_and_grad(loss)  # the average of all processes

    @ddl.jit  # jax.jit also works, but a call takes 0.1 ms longer
    def step(parameters: Any, momenta: Any, images: Any, labels: Any, rate: Any) -> Any:
        _, gradients = loss_and_gradients(parameters, images, labels)
        return update(parameters, momenta, gradients, rate)

    for chosen, rate in batches(len(images), epochs):
        mine = chosen[ddl.rank() :: ddl.size()]  # this process's part of the batch
        parameters, momenta = step(parameters, momenta, images[mine], labels[mine], rate)
    return parameters


def stock_training(images: Any, labels: Any, epochs: int) -> Any:
    """Train with jax alone: arrays are spread over the devices of all processes."""
    import jax
    from jax.sharding import AxisType, NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = jax.make_mesh((jax.device_count(),), ("batch",), axis_types=(AxisType.Auto,))
    everywhere, spread = NamedSharding(mesh, P()), NamedSharding(mesh, P("batch"))

    def place(array: Any, sharding: Any) -> Any:
        whole = np.asarray(array)
        return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])

    parameters = [place(p, everywhere) for p in fresh(jax.random.key(0))]
    momenta = [place(0 * np.asarray(p.addressable_data(0)), everywhere) for p in parameters]

    @jax.jit
    def step(parameters: Any, momenta: Any, images: Any, labels: Any, rate: Any) -> Any:
        gradients = jax.grad(loss)(parameters, images, labels)
        return jax.lax.with_sharding_constraint(
            update(parameters, momenta, gradients, rate), everywhere
        )

    for chosen, rate in batches(len(images), epochs):
        own = place(images[chosen], spread), place(labels[chosen], spread)
        parameters, momenta = step(parameters, momenta, *own, rate)
    return [p.addressable_data(0) for p in parameters]


def load() -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Return images, scaled to values from 0 to 1, and their labels: for training, and for the
    test."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images = (digits.data[order] / 16).astype(np.float32)
    labels = digits.target[order].astype(np.int32)
    return (images[TEST_IMAGES:], labels[TEST_IMAGES:]), (
        images[:TEST_IMAGES],
        labels[:TEST_IMAGES],
    )


def batches(images: int, epochs: int) -> Any:
    """Yield each step's images, the same for all processes, and its learning rate. The rate rises
    over the first tenth of the steps and falls to zero at the end."""
    shuffle = np.random.default_rng(1)
    steps_per_epoch = images // BATCH
    steps = epochs * steps_per_epoch
    for step in range(steps):
        if step % steps_per_epoch == 0:
            order = shuffle.permutation(images)
        warm_up = max(1, steps // 10)
        rising, falling = (step + 1) / warm_up, (steps - step) / (steps - warm_up + 1)
        first = step % steps_per_epoch * BATCH
        yield order[first : first + BATCH], np.float32(RATE * min(rising, falling, 1.0))


def fresh(key: Any) -> Any:
    """Return weights and biases of a network with two hidden layers."""
    import jax

    sizes = (64, 128, 64, 10)
    parameters = []
    for inputs, outputs in pairwise(sizes):
        key, own = jax.random.split(key)
        parameters.append(jax.random.normal(own, (inputs, outputs)) * (2 / inputs) ** 0.5)
        parameters.append(jax.numpy.zeros(outputs))
    return parameters


def network(parameters: Any, images: Any) -> Any:
    import jax

    values = images
    for layer in range(0, len(parameters) - 2, 2):
        values = jax.nn.relu(values @ parameters[layer] + parameters[layer + 1])
    return values @ parameters[-2] + parameters[-1]


def loss(parameters: Any, images: Any, labels: Any) -> Any:
    import jax

    chances = jax.nn.log_softmax(network(parameters, images))
    return -jax.numpy.take_along_axis(chances, labels[:, None], axis=1).mean()


def update(parameters: Any, momenta: Any, gradients: Any, rate: Any) -> Any:
    """Do a step of gradient descent with momentum and weight decay."""
    import jax

    momenta = jax.tree.map(
        lambda m, g, p: MOMENTUM * m + g + DECAY * p, momenta, gradients, parameters
    )
    return jax.tree.map(lambda p, m: p - rate * m, parameters, momenta), momenta


if __name__ == "__main__":
    sys.exit(main())
