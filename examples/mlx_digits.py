# SPDX-License-Identifier: Apache-2.0
"""Train a small MLX network to read handwritten digits, on any number of processes.

    python examples/mlx_digits.py                     one process
    ddlrun -n 2 python examples/mlx_digits.py         two
    mpirun -n 2 python examples/mlx_digits.py         two

The lines marked (1), (2) and (3) make it train on many processes; the rest is the same as
for one process.
"""

from __future__ import annotations

import sys

import digits
import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.optimizers import SGD
from mlx.utils import tree_flatten

import ddl_mlx as ddl

EPOCHS, RATE, MOMENTUM = 30, 0.1, 0.9


def loss_of(model: nn.Module, images: mx.array, labels: mx.array) -> mx.array:
    return nn.losses.cross_entropy(model(images), labels, reduction="mean")


def main() -> int:
    ddl.init()  # (1) join the other processes
    samples, (images, labels) = digits.load()
    mx.random.seed(ddl.rank())
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    ddl.broadcast_parameters(dict(tree_flatten(model.parameters())))
    optimizer = ddl.DistributedOptimizer(SGD(RATE, MOMENTUM))  # (3) average the gradients
    loss_and_gradients = nn.value_and_grad(model, loss_of)

    # (2) train on this process's part of every batch
    for own_images, own_labels in digits.batches(samples, EPOCHS, ddl.rank(), ddl.size()):
        _, gradients = loss_and_gradients(model, mx.array(own_images), mx.array(own_labels))
        optimizer.update(model, gradients)
        mx.eval(model.parameters())
    right = np.array(model(mx.array(images))).argmax(1) == labels
    weights = [np.array(each) for _, each in tree_flatten(model.parameters())]
    code = digits.report(ddl, weights, right)
    ddl.shutdown()
    return code


if __name__ == "__main__":
    sys.exit(main())
