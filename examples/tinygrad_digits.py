# SPDX-License-Identifier: Apache-2.0
"""Train a small tinygrad network to read handwritten digits, on any number of processes.

    python examples/tinygrad_digits.py                     one process
    ddlrun -n 2 python examples/tinygrad_digits.py         two
    mpirun -n 2 python examples/tinygrad_digits.py         two

The lines marked (1), (2) and (3) make it train on many processes; the rest is the same as
for one process.
"""

from __future__ import annotations

import sys

import digits
import numpy as np
from tinygrad import Context, Tensor, nn

import ddl_tinygrad as ddl

EPOCHS, RATE, MOMENTUM = 12, 0.1, 0.9


def main() -> int:
    ddl.init()  # (1) join the other processes
    samples, (images, labels) = digits.load()
    parameters = [Tensor(value) for value in digits.initial_weights(ddl.rank(), 64, 128, 10)]
    ddl.broadcast_parameters({str(n): each for n, each in enumerate(parameters)})
    optimizer = nn.optim.SGD(parameters, lr=RATE, momentum=MOMENTUM)
    optimizer = ddl.DistributedOptimizer(optimizer)  # (3) average the gradients

    def scores(values: np.ndarray) -> Tensor:
        hidden = (Tensor(values) @ parameters[0] + parameters[1]).relu()
        return hidden @ parameters[2] + parameters[3]

    # (2) train on this process's part of every batch
    for own_images, own_labels in digits.batches(samples, EPOCHS, ddl.rank(), ddl.size()):
        optimizer.zero_grad()
        scores(own_images).sparse_categorical_crossentropy(Tensor(own_labels)).backward()
        with Context(TRAINING=1):
            optimizer.step()
    right = scores(images).numpy().argmax(1) == labels
    code = digits.report(ddl, [each.numpy() for each in parameters], right)
    ddl.shutdown()
    return code


if __name__ == "__main__":
    sys.exit(main())
