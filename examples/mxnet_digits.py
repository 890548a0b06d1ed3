# SPDX-License-Identifier: Apache-2.0
"""Train a small MXNet network to read handwritten digits, on any number of processes.

    python examples/mxnet_digits.py                     one process
    ddlrun -n 2 python examples/mxnet_digits.py         two
    mpirun -n 2 python examples/mxnet_digits.py         two

The lines marked (1), (2) and (3) make it train on many processes; the rest is the same as
for one process.
"""

from __future__ import annotations

import sys

import digits
import mxnet as mx
from mxnet import autograd, gluon

import ddl_mxnet as ddl

EPOCHS, RATE, MOMENTUM = 30, 0.1, 0.9


def main() -> int:
    ddl.init()  # (1) join the other processes
    samples, (images, labels) = digits.load()
    mx.random.seed(ddl.rank())
    model = gluon.nn.Sequential()
    model.add(gluon.nn.Dense(128, "relu", in_units=64), gluon.nn.Dense(10, in_units=128))
    model.initialize(mx.init.Xavier())
    parameters = model.collect_params()
    ddl.broadcast_parameters({name: each.data() for name, each in parameters.items()})
    options = {"learning_rate": RATE, "momentum": MOMENTUM}
    trainer = ddl.DistributedTrainer(parameters, "sgd", options)  # (3) average the gradients
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

    # (2) train on this process's part of every batch
    for own_images, own_labels in digits.batches(samples, EPOCHS, ddl.rank(), ddl.size()):
        with autograd.record():
            loss = loss_of(model(mx.nd.array(own_images)), mx.nd.array(own_labels))
        loss.backward()
        trainer.step(len(own_labels))
    right = model(mx.nd.array(images)).asnumpy().argmax(1) == labels
    weights = [each.data().asnumpy() for _, each in sorted(parameters.items())]
    code = digits.report(ddl, weights, right)
    ddl.shutdown()
    return code


if __name__ == "__main__":
    sys.exit(main())
