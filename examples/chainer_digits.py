# SPDX-License-Identifier: Apache-2.0
"""Train a small Chainer network to read handwritten digits, on any number of processes.

    python examples/chainer_digits.py                     one process
    ddlrun -n 2 python examples/chainer_digits.py         two
    mpirun -n 2 python examples/chainer_digits.py         two

This is a program of ChainerMN. Only the lines marked (1) are libddl's.
"""

from __future__ import annotations

import sys
import tempfile

import chainer
import chainer.functions as F
import chainer.links as L
import chainermn
import digits
import numpy as np
from chainer.training import StandardUpdater, Trainer, extensions

import ddl_chainer as ddl  # (1)

EPOCHS = 30


class Network(chainer.Chain):
    def __init__(self) -> None:
        super().__init__()
        with self.init_scope():
            self.hidden = L.Linear(64, 128)
            self.out = L.Linear(128, 10)

    def forward(self, images: chainer.Variable) -> chainer.Variable:
        return self.out(F.relu(self.hidden(images)))


def main() -> int:
    comm = ddl.create_communicator("ddl")  # (1)
    if digits.BATCH % comm.size:
        sys.exit(f"a batch of {digits.BATCH} cannot be shared equally by {comm.size} processes")
    samples, test = digits.load()
    train = chainer.datasets.TupleDataset(*samples)
    train = chainermn.scatter_dataset(train, comm, shuffle=True, seed=0)
    own_test = chainermn.scatter_dataset(chainer.datasets.TupleDataset(*test), comm)

    np.random.seed(comm.rank)  # the first update gives all ranks rank 0's weights
    model = L.Classifier(Network())
    optimizer = chainer.optimizers.MomentumSGD(0.1)
    optimizer = chainermn.create_multi_node_optimizer(optimizer, comm).setup(model)
    share = digits.BATCH // comm.size
    updater = StandardUpdater(chainer.iterators.SerialIterator(train, share), optimizer)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(updater, (EPOCHS, "epoch"), out=folder)
        iterator = chainer.iterators.SerialIterator(own_test, share, repeat=False, shuffle=False)
        evaluator = extensions.Evaluator(iterator, model)
        trainer.extend(chainermn.create_multi_node_evaluator(evaluator, comm))
        trainer.run()

    with chainer.using_config("train", False), chainer.no_backprop_mode():
        right = model.predictor(test[0]).array.argmax(1) == test[1]
    weights = [np.asarray(param.array) for _, param in sorted(model.namedparams())]
    code = digits.report(ddl, weights, right)
    ddl.shutdown()
    return code


if __name__ == "__main__":
    sys.exit(main())
