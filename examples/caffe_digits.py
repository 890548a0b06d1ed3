# SPDX-License-Identifier: Apache-2.0
"""Train a small Caffe network to read handwritten digits, on any number of processes.

    python examples/caffe_digits.py                     one process
    ddlrun -n 2 python examples/caffe_digits.py         two
    mpirun -n 2 python examples/caffe_digits.py         two

The lines marked (1), (2) and (3) make it train on many processes; the rest is the same as
for one process.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("GLOG_minloglevel", "2")  # otherwise Caffe prints the whole net

import caffe
import digits
from caffe import layers as L

import ddl_caffe as ddl

EPOCHS = 30
SOLVER = 'net: "{net}" base_lr: 0.1 momentum: 0.9 lr_policy: "fixed" solver_mode: CPU'


def network(batch: int) -> str:
    """Return the network in Caffe's text format."""
    net, filler = caffe.NetSpec(), {"type": "msra"}
    net.images = L.Input(shape={"dim": [batch, 64]})
    net.labels = L.Input(shape={"dim": [batch]})
    net.hidden = L.InnerProduct(net.images, num_output=128, weight_filler=filler)
    net.active = L.ReLU(net.hidden, in_place=True)
    net.scores = L.InnerProduct(net.active, num_output=10, weight_filler=filler)
    net.loss = L.SoftmaxWithLoss(net.scores, net.labels)
    return str(net.to_proto())


def main() -> int:
    ddl.init()  # (1) join the other processes
    samples, (images, labels) = digits.load()
    with tempfile.TemporaryDirectory() as folder:
        net, file = Path(folder, "net.prototxt"), Path(folder, "solver.prototxt")
        net.write_text(network(digits.BATCH // ddl.size()))
        caffe.set_random_seed(ddl.rank())
        file.write_text(SOLVER.format(net=net))
        solver = ddl.Solver(caffe.SGDSolver(str(file)))  # (3) average the gradients
    blobs = solver.net.blobs

    # (2) train on this process's part of every batch
    for own_images, own_labels in digits.batches(samples, EPOCHS, ddl.rank(), ddl.size()):
        blobs["images"].data[...] = own_images
        blobs["labels"].data[...] = own_labels
        solver.step(1)

    blobs["images"].reshape(*images.shape)
    blobs["labels"].reshape(*labels.shape)
    blobs["images"].data[...] = images
    solver.net.forward()
    right = blobs["scores"].data.argmax(1) == labels
    weights = [blob.data for layer in solver.net.params.values() for blob in layer]
    code = digits.report(ddl, weights, right)
    ddl.shutdown()
    return code


if __name__ == "__main__":
    sys.exit(main())
