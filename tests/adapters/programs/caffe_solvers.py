# SPDX-License-Identifier: Apache-2.0
"""Run by test_caffe.py on each rank with a real Caffe: callbacks, ddl_caffe's own loop, snapshots.
Unlike a list of layers, the net has two branches, for which Caffe inserts a split layer, and two
layers that share their weights.

The net has what a list of layers is not: two branches, for which Caffe inserts a split layer, and
two layers that share their weights.
"""

import os
from pathlib import Path

os.environ.setdefault("GLOG_minloglevel", "2")

import caffe
import numpy as np
from caffe import layers as L

import ddl_caffe as ddl

BATCH, WIDTH, RATE = 8, 4, 0.1
SOLVER = 'net: "{net}" base_lr: {rate} lr_policy: "fixed" snapshot_prefix: "{to}" solver_mode: CPU'

ddl.init()
here = Path(f"rank{ddl.rank()}")
here.mkdir()
random = np.random.default_rng(1)
images = random.standard_normal((BATCH, WIDTH)).astype("f")
labels = random.standard_normal((BATCH, 2)).astype("f")


def build(name: str, batch: int, seed: int) -> caffe.Solver:
    net, shared = caffe.NetSpec(), [{"name": "weights"}, {"name": "bias"}]
    fillers = {"weight_filler": {"type": "xavier"}, "bias_filler": {"type": "gaussian"}}
    net.images = L.Input(shape={"dim": [batch, WIDTH]})
    net.labels = L.Input(shape={"dim": [batch, 2]})
    net.first = L.InnerProduct(net.images, num_output=WIDTH, param=shared, **fillers)
    net.active = L.TanH(net.first)
    net.again = L.InnerProduct(net.active, num_output=WIDTH, param=shared, **fillers)
    net.joined = L.Eltwise(net.active, net.again)
    net.out = L.InnerProduct(net.joined, num_output=2, **fillers)
    net.loss = L.EuclideanLoss(net.out, net.labels)
    file, solver = here / f"{name}.net", here / f"{name}.solver"
    file.write_text(str(net.to_proto()))
    solver.write_text(SOLVER.format(net=file, rate=RATE, to=here / name))
    caffe.set_random_seed(seed)
    return caffe.SGDSolver(str(solver))


class WithoutCallbacks:
    """A solver of a build without `add_callback`, on Caffe's own net."""

    def __init__(self, solver: caffe.Solver) -> None:
        self.net = solver.net
        self.kept = solver  # owns the net
        self.passes: list[tuple[str, str]] = []
        self.backward = self.net.backward
        self.net.backward = self._backward

    def _backward(self, start: str, end: str) -> None:
        self.passes.append((start, end))
        self.backward(start=start, end=end)

    def apply_update(self) -> None:
        for _, blob in sorted({b.data.ctypes.data: b for b in blobs(self.net)}.items()):
            blob.data[...] -= RATE * blob.diff


def blobs(net: caffe.Net) -> list[caffe._caffe.Blob]:
    return [blob for layer in net.params.values() for blob in layer]


def feed(net: caffe.Net, part: slice) -> None:
    net.blobs["images"].data[...], net.blobs["labels"].data[...] = images[part], labels[part]


def weights(net: caffe.Net) -> np.ndarray:
    return np.concatenate([blob.data.reshape(-1) for blob in blobs(net)])


alone = build("alone", BATCH, seed=1)
feed(alone.net, slice(None))
alone.step(3)

mine = slice(ddl.rank(), None, ddl.size())
for name in ("callbacks", "loop"):
    inner = build(name, BATCH // ddl.size(), seed=1 + ddl.rank())
    solver = ddl.Solver(inner if name == "callbacks" else WithoutCallbacks(inner))
    feed(solver.net, mine)
    solver.step(3)
    own = weights(solver.net)
    np.testing.assert_allclose(own, weights(alone.net), rtol=1e-4, atol=1e-6, err_msg=name)
    assert len(set(ddl.allgather_object(own.tobytes()))) == 1
    if name == "callbacks":
        assert solver.iter == 3
        solver.snapshot()
        everyones = ddl.allgather_object(len(list(here.glob("callbacks_iter_3.*"))))
        assert everyones == [2] + [0] * (ddl.size() - 1), everyones  # weights, and the state
    else:
        # The weights that the two layers share are complete after the first of them.
        passes = [("loss", "out"), ("joined", "first"), ("labels", "images")]
        assert solver.passes == passes * 3, solver.passes
ddl.shutdown()
print("right")
