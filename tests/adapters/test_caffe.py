# SPDX-License-Identifier: Apache-2.0
"""ddl_caffe's solver, with a stand-in for pycaffe, and with Caffe if it is installed."""

import importlib.util
from pathlib import Path

import pytest
from conftest import Run

ON_CAFFE = Path(__file__).parent / "programs" / "caffe_solvers.py"
PROGRAM = f"""
import sys
import threading
import numpy as np
sys.path.insert(0, {str(Path(__file__).parent)!r})
import caffe_stand_in as stand_in
import ddl_caffe as ddl
from ddl_core.errors import InvalidArgument

BATCH = 8
images = np.random.default_rng(1).standard_normal((BATCH, stand_in.WIDTH)).astype("f")
labels = images[:, ::-1].copy()


def feed(net, images, labels):
    net.blobs["images"].data, net.blobs["labels"].data = images, labels


def weights(solver):
    return [blob.data for layer in solver.net.params.values() for blob in layer]


def alone(iterations):
    '''What one process comes to, from rank 0's weights.'''
    solver = stand_in.SolverWithCallbacks(seed=0)
    feed(solver.net, images, labels)
    solver.step(iterations)
    return weights(solver)


def same(ours, theirs):
    return all(np.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(ours, theirs, strict=True))


ddl.init()
mine = slice(ddl.rank(), None, ddl.size())
for build in (stand_in.Solver, stand_in.SolverWithCallbacks):
    inner = build(seed=ddl.rank())
    solver = ddl.Solver(inner)
    feed(solver.net, images[mine], labels[mine])
    assert same(weights(solver), alone(0)), "rank 0's weights"
    solver.step(5)
    assert solver.iter == 5
    assert same(weights(solver), alone(5)), build
    assert not same(weights(solver), alone(4)), build
    bits = b"".join(value.tobytes() for value in weights(solver))
    assert len(set(ddl.allgather_object(bits))) == 1
    solver.snapshot()
    assert inner.snapshots == (ddl.rank() == 0)
    passes = [("loss", "second"), ("active", "first"), ("labels", "images")]
    assert solver.net.passes == (passes if build is stand_in.Solver else [(None, None)]) * 5

# Twice the same batch per update: their gradients add up.
inner, twice = stand_in.Solver(seed=0), stand_in.Solver(seed=0)
feed(inner.net, images[mine], labels[mine])
feed(twice.net, images, labels)
ddl.Solver(inner, iter_size=2).step(1)
for _ in range(2):
    twice.net.forward()
    twice.net.backward()
twice.apply_update()
assert same(weights(inner), weights(twice))

last = ddl.size() - 1
assert ddl.broadcast_object(dict(rank=ddl.rank()), root=last) == dict(rank=last)
(mean,) = ddl.allreduce_gradients([np.full(2, ddl.rank(), "f")])
assert mean.tolist() == [last / 2] * 2
assert ddl.average_metrics(dict(loss=ddl.rank()), weight=ddl.rank() + 1) == dict(
    loss=sum(n * (n + 1) for n in range(last + 1)) / sum(range(last + 2))
)

for move in (lambda each: ddl.broadcast_object(each, root=last), ddl.allgather_object):
    try:
        move(threading.Lock() if ddl.rank() == last else None)
    except TypeError as error:
        assert "the object of rank %d cannot be pickled" % last in str(error), error
    else:
        raise AssertionError("a lock was sent")

for wrong, said in [
    (lambda: ddl.attach(stand_in.Solver(0)), "which has no add_callback; use ddl_caffe.Solver"),
    (lambda: ddl.Solver(object()), "solver is a object, which has neither add_callback"),
    (solver.solve, "step(iterations)"),
    (lambda: ddl.allreduce([1.0]), "array is a list, not a NumPy array"),
]:
    try:
        wrong()
    except InvalidArgument as error:
        assert said in str(error), error
    else:
        raise AssertionError(said)
print("right")
"""


@pytest.mark.parametrize("size", [1, 2])
def test_solver(ddlrun: Run, size: int) -> None:
    ended = ddlrun(size, PROGRAM, limit=120).expect_success()
    assert all(ended.lines(rank) == ["right"] for rank in range(size))


@pytest.mark.skipif(importlib.util.find_spec("caffe") is None, reason="there is no caffe")
@pytest.mark.parametrize("size", [1, 2])
def test_solvers_of_caffe(ddlrun: Run, size: int) -> None:
    """The same as with the stand-in, on Caffe's own nets, with callbacks and with the loop. Rank 0
    writes snapshots."""
    ended = ddlrun(size, ON_CAFFE, limit=120).expect_success()
    assert all(ended.lines(rank) == ["right"] for rank in range(size))
