# SPDX-License-Identifier: Apache-2.0
"""Operations of ddl_tensorflow among some of the ranks, eagerly, in graphs, and compiled by XLA, on
three ranks or more. With the argument "interpreted" without XLA. Prints "done NAME" for each part.
"""

import sys

import numpy as np
import tensorflow as tf
from checks import refused

import ddl_tensorflow as ddl
from ddl_core import errors

ddl.init()
RANK, SIZE = ddl.rank(), ddl.size()
MEMBERS = list(range(RANK % 2, SIZE, 2))  # the size of this rank's set: even or odd ranks
SET = ddl.split(RANK % 2)
OWN = MEMBERS.index(RANK)
COUNT = len(MEMBERS)
TOTAL = sum(rank + 1 for rank in MEMBERS)
WAYS = {"eager": lambda function: function, "graph": tf.function}
if "interpreted" not in sys.argv:
    WAYS["jit"] = lambda function: tf.function(function, jit_compile=True)


def same(tensor, expected):
    np.testing.assert_allclose(np.asarray(tensor, np.float64), expected, rtol=1e-6)


def own(rows=4):
    return tf.fill([rows], RANK + 1.0)


def gradient(function, tensor):
    """Return the gradient of the function's sum, weighted by rank + 1."""
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        result = function(tensor)
    return tape.gradient(result, tensor, tf.fill(tf.shape(result), RANK + 1.0))


def members():
    assert (SET.rank, SET.size) == (OWN, COUNT)
    again = ddl.subset(MEMBERS[::-1])
    assert (again.rank, again.size) == (COUNT - 1 - OWN, COUNT)
    last = SET.split(OWN if COUNT > 1 else None)
    assert last is None if COUNT == 1 else last.size == 1
    assert ddl.split(None if RANK else 3) is None or RANK == 0
    refused(
        errors.InvalidArgument,
        "comm is a int; must be a communicator",
        lambda: ddl.allreduce(1.0, comm=3),
    )


def values(way):
    same(way(lambda: ddl.allreduce(own(), comm=SET))(), [TOTAL] * 4)
    same(way(lambda: ddl.allreduce(own(), "average", comm=SET))(), [TOTAL / COUNT] * 4)
    pair = way(lambda: ddl.grouped_allreduce([own(), own(2)], "max", comm=SET))()
    same(pair[1], [MEMBERS[-1] + 1] * 2)
    same(way(lambda: ddl.broadcast(own(), COUNT - 1, comm=SET))(), [MEMBERS[-1] + 1] * 4)
    same(way(lambda: ddl.allgather(own(1), comm=SET))(), [rank + 1 for rank in MEMBERS])
    rows = [number + 1 for number in range(COUNT)]
    uneven = [rank + 1 for number, rank in enumerate(MEMBERS) for _ in range(number + 1)]
    same(way(lambda: ddl.allgather(own(OWN + 1), rows, comm=SET))(), uneven)
    same(way(lambda: ddl.reduce_scatter(own(2 * COUNT), comm=SET))(), [TOTAL] * 2)
    parts = way(lambda: ddl.reduce_scatter(own(sum(rows)), rows=rows, comm=SET))()
    same(parts, [TOTAL] * (OWN + 1))
    same(way(lambda: ddl.alltoall(own(COUNT), comm=SET))(), [rank + 1 for rank in MEMBERS])
    refused(ValueError, "root is 9; must be", lambda: ddl.broadcast(own(), 9, comm=SET))
    ddl.barrier(comm=SET)


def unequal():
    uneven = [rank + 1 for number, rank in enumerate(MEMBERS) for _ in range(number + 1)]
    same(ddl.allgather(own(OWN + 1), comm=SET), uneven)
    rows = [number + 1 for number in range(COUNT)]
    received, of_rank = ddl.alltoall(own(sum(rows)), rows, comm=SET)
    same(received, [rank + 1 for rank in MEMBERS for _ in range(OWN + 1)])
    same(of_rank, [OWN + 1] * COUNT)


def gradients(way):
    def of(function, tensor):
        return way(lambda: gradient(function, tensor))()

    same(of(lambda t: ddl.allreduce(t, comm=SET), own()), [TOTAL] * 4)
    same(of(lambda t: ddl.grouped_allreduce([t], comm=SET)[0], own()), [TOTAL] * 4)
    root = [TOTAL if OWN == 0 else 0] * 4
    same(of(lambda t: ddl.broadcast(t, comm=SET), own()), root)
    same(of(lambda t: ddl.allgather(t, comm=SET), own(2)), [TOTAL] * 2)
    ranks = [rank + 1 for rank in MEMBERS]
    averages = np.divide(ranks, COUNT)
    same(of(lambda t: ddl.reduce_scatter(t, "average", comm=SET), own(COUNT)), averages)
    same(of(lambda t: ddl.alltoall(t, comm=SET), own(COUNT)), ranks)


def both_at_once():
    @tf.function
    def run():
        first = ddl.allreduce(own(), comm=SET)
        everyone = ddl.allreduce(own())
        return first, everyone, ddl.allreduce(first, comm=SET)

    for _ in range(3):
        first, everyone, again = run()
        same(first, [TOTAL] * 4)
        same(everyone, [SIZE * (SIZE + 1) / 2] * 4)
        same(again, [COUNT * TOTAL] * 4)


def training():
    weight, table = tf.Variable([0.0]), tf.Variable(tf.zeros([SIZE, 1]))
    with ddl.DistributedGradientTape(comm=SET) as tape:
        loss = tf.reduce_sum(weight) * (RANK + 1) + tf.reduce_sum(tf.gather(table, [RANK]))
    found = tape.gradient(loss, [weight, table])
    same(found[0], [TOTAL / COUNT])
    same(tf.convert_to_tensor(found[1])[:, 0], [(r in MEMBERS) / COUNT for r in range(SIZE)])
    variables = [tf.Variable(own()), tf.Variable(RANK)]
    ddl.broadcast_parameters(variables, COUNT - 1, comm=SET)
    same(variables[1], MEMBERS[-1])
    assert ddl.broadcast_object("x" * RANK, COUNT - 1, comm=SET) == "x" * MEMBERS[-1]
    assert ddl.allgather_object("x" * RANK, comm=SET) == ["x" * rank for rank in MEMBERS]
    averaged = ddl.average_metrics({"loss": RANK + 1.0}, comm=SET)
    assert averaged == {"loss": TOTAL / COUNT}


for name, way in WAYS.items():
    values(way)
    gradients(way)
    print("done", name, flush=True)
for part in (members, unequal, both_at_once, training):
    part()
    print("done", part.__name__, flush=True)
kept = tf.function(lambda: ddl.allreduce(own(), comm=SET))
same(kept(), [TOTAL] * 4)
ddl.shutdown()
ddl.init()
refused(errors.InvalidState, "create it again", lambda: ddl.allreduce(own(), comm=SET))
refused(tf.errors.FailedPreconditionError, "create it again", kept)
same(ddl.allreduce(own()), [SIZE * (SIZE + 1) / 2] * 4)
ddl.shutdown()
print("done", flush=True)
