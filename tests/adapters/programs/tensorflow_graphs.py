# SPDX-License-Identifier: Apache-2.0
"""Run by test_tensorflow on three ranks: many operations in one graph, loops, names, threads,
training helpers. With the argument "interpreted": where there is no compiler, so without XLA and
graphs of the old kind; with "sample" for fewer steps.
"""

import random
import sys
import threading
import time

import numpy as np
import tensorflow as tf

import ddl_tensorflow as ddl
from ddl_core.errors import InvalidArgument

MANY, STEPS = 50, 40 if "sample" in sys.argv else 200
native = "interpreted" not in sys.argv

tf.get_logger().setLevel("ERROR")  # TensorFlow warns of repeated tracing

ddl.init(timeout=60)
rank, size = ddl.rank(), ddl.size()
total = size * (size + 1) / 2

# ---- many operations that do not depend on each other ----


@tf.function(autograph=False)
def many(x):
    return [ddl.allreduce(x * number) for number in range(MANY)]


for step in range(STEPS):
    results = many(tf.fill([5], float(rank + 1 + step)))
    expected = total + size * step
    assert [each.numpy()[0] for each in results] == [number * expected for number in range(MANY)]
print("done function", flush=True)


# A graph of TensorFlow 1 has no control dependencies, and each rank runs it in its own order: with
# two threads, and built in another order.
def plain_graph():
    order = list(range(MANY))
    random.Random(rank).shuffle(order)
    graph = tf.Graph()
    with graph.as_default():
        fed = tf.compat.v1.placeholder(tf.float32, [5])
        nodes = {number: ddl.allreduce(fed * number, name=f"number{number}") for number in order}
        ranks = ddl.allreduce(1)
        # Without names, operations are matched by the names of their tensors.
        unnamed = {
            number: ddl.allreduce(tf.multiply(fed, number, name=f"fed{number}")) for number in order
        }
    threads = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=2)
    with tf.compat.v1.Session(graph=graph, config=threads) as session:
        assert session.run(ranks) == size
        for step in range(STEPS):
            values = np.full(5, rank + 1.0 + step)
            both = [each[number] for each in (nodes, unnamed) for number in range(MANY)]
            results = session.run(both, {fed: values})
            expected = total + size * step
            assert [each[0] for each in results] == [n * expected for n in range(MANY)] * 2


if native:
    plain_graph()
    print("done graph", flush=True)

# ---- loops, branches, nested functions, and one rank that traces again ----


@tf.function
def loops(x):
    for _ in tf.range(10):
        x = ddl.allreduce(x) / total
        x += ddl.allreduce(tf.ones_like(x)) if tf.reduce_sum(x) > -1e9 else x
    return x


@tf.function
def independent(x):
    return tf.map_fn(ddl.allreduce, x, parallel_iterations=10)


@tf.function(autograph=False)
def inner(x):
    return ddl.allreduce(x)


@tf.function(autograph=False)
def outer(x):
    return inner(x) + inner(2 * x) + ddl.allreduce(3 * x)


for jit in (False, True)[: 1 + native]:
    outer_too = tf.function(lambda x: outer(x), jit_compile=jit)
    for _ in range(20):
        assert outer_too(tf.ones(3)).numpy().tolist() == [6 * size] * 3
for _ in range(20):
    loops(tf.fill([3], 1.0))
    assert independent(tf.range(30.0)).numpy().tolist() == [size * i for i in range(30)]
if rank == 1:
    inner.get_concrete_function(tf.ones([2, 2]))
    loops.get_concrete_function(tf.ones([4]))
for length in (3, 4):
    assert inner(tf.ones(length)).numpy().sum() == length * size
    loops(tf.ones(length))
long = "x" * 1000
assert tf.function(lambda x: ddl.allreduce(x, name=long))(1.0).numpy() == size
assert ddl.allreduce(1.0, name="a name / with: odd $ characters").numpy() == size
print("done loops", flush=True)

# ---- functions with the same name, in two threads ----


def make_step(factor):
    @tf.function(autograph=False)
    def step(x):
        return ddl.allreduce(x * factor)

    return step


class Stepper:
    def __init__(self, factor):
        self.factor = factor

    @tf.function
    def step(self, x):
        return ddl.allreduce(x * self.factor) if tf.reduce_sum(x) > 0 else x


def branched(factor):
    """Its only operations are in the graphs of its branches, which TensorFlow names."""
    return tf.function(lambda x: tf.cond(x[0] > 0, lambda: ddl.allreduce(x * factor), lambda: x))


def slope(factor):
    function = make_step(factor)

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = function(x)
        return tape.gradient(value, x)

    return step


def in_two_threads(functions, expected):
    def repeat(which):
        delays = random.Random(which + 7 * rank)
        for _ in range(STEPS // 4):
            time.sleep(delays.random() * 0.01)
            values[which].append(float(functions[which](tf.ones([4]))[0]))

    values = [], []
    threads = [threading.Thread(target=repeat, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [set(each) for each in values] == [{each} for each in expected], values


steppers = {factor: Stepper(factor) for factor in (1.0, 1000.0)}
for make in (make_step, lambda factor: steppers[factor].step, branched, slope):
    pair = make(1.0), make(1000.0)
    for function in pair:
        function(tf.ones([4]))
    if rank == 1 and make is not slope:  # traces again
        pair[0].get_concrete_function(tf.ones([8]))
    in_two_threads(pair, (size, 1000.0 * size))


# Either thread may trace first.
def make_race(factor):
    def race(x):
        return ddl.allreduce(x * factor)

    return tf.function(race, autograph=False)


late, traced, ended = make_race(2.0), threading.Event(), threading.Event()


def trace_first():
    make_race(3.0).get_concrete_function(tf.ones([4]))
    traced.set()
    ended.wait(60)


thread = threading.Thread(target=trace_first, name="the first", daemon=True)
thread.start()
assert traced.wait(60)
try:
    late.get_concrete_function(tf.ones([4]))
except InvalidArgument as error:
    assert "traced in the thread 'the first'" in str(error) and "'MainThread'" in str(error), error
else:
    raise AssertionError("two functions of one name in two threads")
ended.set()
thread.join()
assert late(tf.ones([4])).numpy()[0] == 2 * size  # the other thread has ended
print("done threads", flush=True)

# ---- training helpers ----

weight = tf.Variable([[1.0 + rank], [2.0]])
table = tf.Variable(tf.ones([6, 2]))
unused = tf.Variable(1.0)
ddl.broadcast_parameters([weight, table], root=size - 1)
assert weight.numpy()[0, 0] == size


def loss_of(inputs, words):
    picked = tf.reduce_sum(tf.gather(table, words))
    return tf.reduce_sum(tf.matmul(inputs, weight)) * picked


def gradients(**options):
    inputs = tf.constant([[rank + 1.0, 2.0]])
    words = tf.constant([rank, 5])
    with ddl.DistributedGradientTape(**options) as tape:
        loss = loss_of(inputs, words)
    return tape.gradient(loss, [weight, table, unused])


picked = 4.0
ways = (gradients, tf.function(gradients), tf.function(gradients, jit_compile=True))
for way in ways[: 2 + native]:
    for options in ({}, {"op": "sum"}, {"compression": "bf16"}, {"sparse_as_dense": True}):
        scale = 1 if options.get("op") == "sum" else size
        of_weight, of_table, of_unused = way(**options)
        assert of_unused is None
        expected = np.array([[total], [2.0 * size]]) * picked / scale
        np.testing.assert_allclose(
            of_weight, expected, rtol=1e-2 if "compression" in options else 0
        )
        assert isinstance(of_table, tf.IndexedSlices) == ("sparse_as_dense" not in options)
        dense = tf.convert_to_tensor(of_table).numpy()
        outcomes = [(of + 1.0) * size + 4.0 for of in range(size)]
        right = np.zeros((6, 2))
        for of, outcome in enumerate(outcomes):
            right[[of, 5]] += outcome / scale
        np.testing.assert_allclose(dense, right, rtol=1e-6)
with tf.GradientTape() as plain:
    loss = tf.reduce_sum(weight) * (rank + 1)
wrapped = ddl.DistributedGradientTape(plain, op="sum")
assert wrapped.watched_variables() == (weight,)
assert wrapped.gradient(loss, {"w": weight})["w"].numpy().tolist() == [[total], [total]]
for wrong in ({"op": "max"}, {"compression": "f8"}):
    try:
        ddl.DistributedGradientTape(**wrong)
    except InvalidArgument as error:
        assert "max" in str(error) or "f8" in str(error)
    else:
        raise AssertionError(wrong)

assert ddl.broadcast_object({"from": rank}, size - 1) == {"from": size - 1}
assert ddl.allgather_object("x" * rank) == ["x" * of for of in range(size)]
for move in (lambda each: ddl.broadcast_object(each, size - 1), ddl.allgather_object):
    try:
        move(threading.Lock() if rank == size - 1 else None)
    except TypeError as error:
        assert f"the object of rank {size - 1} cannot be pickled" in str(error), error
    else:
        raise AssertionError("a lock was sent")
try:
    ddl.average_metrics({"a": 1.0, "c" if rank else "b": 2.0})
except InvalidArgument as error:
    assert "another rank has other names" in str(error)
else:
    raise AssertionError("averages of other metrics")
averages = ddl.average_metrics({"loss": rank, "accuracy": tf.constant(0.5)}, weight=rank + 1)
loss = sum(of * (of + 1) for of in range(size)) / total
assert abs(averages["loss"] - loss) < 1e-12 and averages["accuracy"] == 0.5
ddl.shutdown()
print("done helpers", flush=True)
