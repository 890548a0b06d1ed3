# SPDX-License-Identifier: Apache-2.0
"""Train a small PaddlePaddle network to read handwritten digits, on any number of processes.

    python examples/paddle_digits.py                     one process
    ddlrun -n 2 python examples/paddle_digits.py         two
    mpirun -n 2 python examples/paddle_digits.py         two

The lines marked (1), (2) and (3) make it train on many processes; the rest is the same as
for one process.
"""

from __future__ import annotations

import sys

import digits
import paddle
from paddle import nn

import ddl_paddle as ddl

EPOCHS, RATE, MOMENTUM = 30, 0.1, 0.9


def main() -> int:
    ddl.init()  # (1) join the other processes
    samples, (images, labels) = digits.load()
    paddle.seed(ddl.rank())
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    ddl.broadcast_parameters(model.state_dict())
    optimizer = paddle.optimizer.Momentum(RATE, MOMENTUM, model.parameters())
    optimizer = ddl.DistributedOptimizer(optimizer)  # (3) average the gradients
    loss_of = nn.CrossEntropyLoss()

    # (2) train on this process's part of every batch
    for own_images, own_labels in digits.batches(samples, EPOCHS, ddl.rank(), ddl.size()):
        scores = model(paddle.to_tensor(own_images))
        loss_of(scores, paddle.to_tensor(own_labels, dtype="int64")).backward()
        optimizer.step()
        optimizer.clear_grad()
    right = model(paddle.to_tensor(images)).numpy().argmax(1) == labels
    code = digits.report(ddl, [each.numpy() for each in model.parameters()], right)
    ddl.shutdown()
    return code


if __name__ == "__main__":
    sys.exit(main())
