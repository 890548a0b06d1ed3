# SPDX-License-Identifier: Apache-2.0
"""Train a small network to read handwritten digits with PyTensor, Aesara or Theano-PyMC, whichever
is installed, on any number of processes.

    python examples/pytensor_digits.py                     one process
    ddlrun -n 2 python examples/pytensor_digits.py         two
    mpirun -n 2 python examples/pytensor_digits.py         two

The lines marked (1), (2) and (3) make it train on many processes; the rest is the same as
for one process.
"""

from __future__ import annotations

import sys

import digits

import ddl_pytensor as ddl
from ddl_pytensor.framework import framework, tensor

EPOCHS, RATE, MOMENTUM = 30, 0.1, 0.9


def main() -> int:
    ddl.init()  # (1) join the other processes
    samples, test = digits.load()
    initial = digits.initial_weights(ddl.rank(), 64, 128, 10)
    weights = [framework.shared(value) for value in initial]
    ddl.broadcast_parameters({str(n): each for n, each in enumerate(weights)})  # the same for all

    images, labels = tensor.fmatrix("images"), tensor.ivector("labels")
    hidden = tensor.maximum(tensor.dot(images, weights[0]) + weights[1], 0)
    scores = tensor.dot(hidden, weights[2]) + weights[3]
    highest = scores.max(axis=1, keepdims=True)
    log_sum = tensor.log(tensor.exp(scores - highest).sum(axis=1)) + highest[:, 0]
    own_scores = scores[tensor.arange(labels.shape[0]), labels]
    loss = tensor.mean(log_sum - own_scores)

    gradients = framework.grad(loss, weights)
    gradients = ddl.allreduce_gradients(gradients)  # (3) average the gradients of all processes
    updates = []
    for weight, gradient in zip(weights, gradients, strict=True):
        momentum = framework.shared(0 * weight.get_value())
        step = (MOMENTUM * momentum + gradient).astype("float32")
        updates += [(momentum, step), (weight, (weight - RATE * step).astype("float32"))]
    train = framework.function([images, labels], [], updates=updates)
    read = framework.function([images], tensor.argmax(scores, axis=1))

    # (2) train on this process's part of every batch
    for own_images, own_labels in digits.batches(samples, EPOCHS, ddl.rank(), ddl.size()):
        train(own_images, own_labels)
    code = digits.report(ddl, [each.get_value() for each in weights], read(test[0]) == test[1])
    ddl.shutdown()
    return code


if __name__ == "__main__":
    sys.exit(main())
