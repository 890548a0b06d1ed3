# SPDX-License-Identifier: Apache-2.0
"""Run by test_keras on two ranks or more, with TensorFlow or JAX as the backend of Keras: ddl_keras
among some of the ranks. EVERYONE has all in reverse, so that its numbers differ from the ranks';
ALONE has only this one. Prints "done NAME" for each part."""

import keras
import numpy as np

import ddl_keras as ddl

ddl.init()
RANK, SIZE = ddl.rank(), ddl.size()
EVERYONE, ALONE = ddl.subset(list(reversed(range(SIZE)))), ddl.split(RANK)
OWN = RANK + 1.0
ALL = [rank + 1.0 for rank in reversed(range(SIZE))]  # in the order of EVERYONE
# If compiled, Keras on JAX calls libddl from its programs, and Keras on TensorFlow from its graphs.
WAYS = {
    "eager": {"run_eagerly": True},
    "graph": {"jit_compile": False},
    "jit": {"jit_compile": True},
}


def same(value, expected):
    value = keras.ops.convert_to_numpy(value)
    np.testing.assert_allclose(np.asarray(value, np.float64), expected, rtol=1e-6)


def own(*shape):
    return keras.ops.full(shape, OWN, "float32")


def communicators():
    assert (EVERYONE.rank, EVERYONE.size) == (SIZE - 1 - RANK, SIZE)
    assert (ALONE.rank, ALONE.size) == (0, 1)
    assert ddl.split(None) is None


def operations():
    for comm, values in ((EVERYONE, ALL), (ALONE, [OWN])):
        count = len(values)
        same(ddl.allreduce(own(4), comm=comm), [sum(values)] * 4)
        same(ddl.allreduce(own(4), "average", comm=comm), [sum(values) / count] * 4)
        pair = ddl.grouped_allreduce([own(4), own(2)], "max", comm=comm)
        same(keras.ops.concatenate(pair), [max(values)] * 6)
        same(ddl.broadcast(own(4), comm=comm), [values[0]] * 4)
        same(ddl.broadcast(own(4), count - 1, comm=comm), [values[-1]] * 4)
        same(ddl.allgather(own(1), comm=comm), values)
        same(ddl.reduce_scatter(own(2 * count), comm=comm), [sum(values)] * 2)
        same(ddl.alltoall(own(count), comm=comm), values)
        ddl.barrier(comm=comm)
    same(ddl.allgather(own(1)), ALL[::-1])  # of all ranks, as without a communicator


def linear(optimizer, **options):
    """Return a model with one weight, by default 0, whose gradient is -OWN."""
    model = keras.Sequential(
        [keras.Input([1]), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
    )
    model.compile(optimizer, lambda true, predicted: -true * predicted, **options)
    return model


def trained(model, **options):
    options = {"batch_size": 1, "epochs": 1, "shuffle": False, "verbose": 0, **options}
    return model.fit(np.ones([1, 1]), np.full([1, 1], OWN), **options)


def optimizers():
    for way in WAYS.values():
        for comm, values in ((EVERYONE, ALL), (ALONE, [OWN])):
            for op, weight in (("average", sum(values) / len(values)), ("sum", sum(values))):
                made = ddl.DistributedOptimizer(keras.optimizers.SGD(1.0), op=op, comm=comm)
                model = linear(made, **way)
                trained(model)
                same(model.layers[-1].kernel, [[weight]])


def models():
    for comm, root in ((EVERYONE, SIZE), (ALONE, OWN)):
        model = linear(keras.optimizers.SGD(0.0, momentum=0.5))
        model.layers[-1].kernel.assign([[OWN]])
        ddl.broadcast_model(model, comm=comm)
        same(model.layers[-1].kernel, [[root]])
        model.layers[-1].kernel.assign([[OWN]])
        trained(model, callbacks=[ddl.callbacks.BroadcastModel(comm=comm)])
        same(model.layers[-1].kernel, [[root]])


def metrics():
    for comm, values in ((EVERYONE, ALL), (ALONE, [OWN])):
        mean = sum(values) / len(values)
        assert ddl.average_metrics({"a": OWN}, comm=comm) == {"a": mean}
        model = linear("sgd", metrics=[lambda true, predicted: true])
        history = trained(model, callbacks=[ddl.callbacks.AverageMetrics(comm=comm)]).history
        (name,) = (each for each in history if each != "loss")
        same(history[name], [mean])


def normalization():
    rows = np.array([[OWN], [OWN + 1]], np.float32)
    for way in WAYS.values():
        for comm, values in ((EVERYONE, ALL), (ALONE, [OWN])):
            everything = np.array([[value, value + 1] for value in values])
            layer = ddl.SyncBatchNormalization(momentum=0.0, comm=comm)
            model = keras.Sequential([keras.Input([1]), layer])
            model.compile("sgd", "mse", **way)
            model.fit(rows, rows, batch_size=2, verbose=0)
            same(layer.moving_mean, [everything.mean()])
            same(layer.moving_variance, [everything.var()])


for part in (communicators, operations, optimizers, models, metrics, normalization):
    part()
    print("done", part.__name__, flush=True)
ddl.shutdown()
