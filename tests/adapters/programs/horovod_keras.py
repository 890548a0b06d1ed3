# SPDX-License-Identifier: Apache-2.0
"""Horovod's modules for Keras over libddl, on any number of ranks: what they add to
ddl_horovod.tensorflow. Prints "done NAME" for each part."""

import copy
import json
import pickle

import keras
import numpy as np
import tensorflow as tf
from checks import refused
from horovod_recorded import Recorded

import ddl_horovod.keras
import ddl_horovod.tensorflow.keras

hvd, tf_hvd = Recorded(ddl_horovod.keras), Recorded(ddl_horovod.tensorflow.keras)
hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
TOTAL = SIZE * (SIZE + 1) / 2  # the sum of rank + 1
EVENS = tf_hvd.add_process_set(range(0, SIZE, 2))


def same(value, expected):
    np.testing.assert_allclose(np.asarray(value, np.float64), expected, rtol=1e-6)


def linear(optimizer, **options):
    """Return a model with one weight of 0. Its gradient on rank r is -(r + 1)."""
    model = keras.Sequential(
        [keras.Input([1]), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
    )
    model.compile(optimizer, lambda true, predicted: -true * predicted, **options)
    return model


def trained(model, batches=1, **options):
    rows, labels = np.ones([batches, 1]), np.full([batches, 1], RANK + 1.0)
    options = {"batch_size": 1, "epochs": 1, "shuffle": False, "verbose": 0, **options}
    history = model.fit(rows, labels, **options)
    return history, float(model.layers[-1].kernel.numpy()[0, 0])


def world():
    for module in (hvd, tf_hvd):
        assert (module.rank(), module.size(), module.local_rank()) == (RANK, SIZE, RANK)
        assert (module.local_size(), module.cross_rank(), module.cross_size()) == (SIZE, 0, 1)
        assert module.is_initialized() and module.gloo_built() and module.gloo_enabled()
        for name in ("mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built"):
            assert not getattr(module, name)()
        for name in ("ddl_built", "ccl_built", "cuda_built", "rocm_built"):
            assert not getattr(module, name)()
        assert module.global_process_set.size() == SIZE
        if RANK == 0:
            module.start_timeline("timeline.json")
            module.stop_timeline()
        refused(NotImplementedError, "elastic.Job", lambda module=module: module.elastic.run)
    assert isinstance(EVENS, tf_hvd.ProcessSet)
    extra = tf_hvd.add_process_set([1])
    assert extra.process_set_id == 2 and tf_hvd.remove_process_set(extra)
    assert tf_hvd.is_version_greater_equal_than("2.10.0", "2.9.1")
    assert not tf_hvd.is_version_greater_equal_than("2.9.0", "2.9.1")
    refused(ValueError, "three numbers", lambda: tf_hvd.is_version_greater_equal_than("2", "2.9.1"))


def operations():
    same(hvd.allreduce([RANK + 1.0]), [TOTAL / SIZE])
    same(hvd.allreduce([RANK + 1.0], average=False), [TOTAL])
    for module in (hvd, tf_hvd):
        same(module.allreduce(np.float32(RANK + 1), op=module.Sum), TOTAL)
        same(module.allreduce([RANK + 1.0], op=module.Average), [TOTAL / SIZE])
        scaled = module.allreduce(1.0, op=hvd.Sum, prescale_factor=2.0, postscale_factor=3.0)
        same(scaled, 6 * SIZE)
        same(module.allreduce(1.0, compression=module.Compression.fp16, name="half"), 1)
        gathered = module.allgather([RANK] * (RANK + 1))
        same(gathered, [rank for rank in range(SIZE) for _ in range(rank + 1)])
        same(module.broadcast([RANK], 1), [1])
        mine = [0.0, 1.0] if RANK == 0 else [RANK + 1.0]
        same(module.reducescatter(np.arange(SIZE + 1.0)), mine)
        same(module.reducescatter(np.arange(SIZE + 1.0), op=module.Sum), np.multiply(mine, SIZE))
        refused(RuntimeError, "eager", lambda module=module: module.broadcast_global_variables(0))
        with tf.Graph().as_default(), tf.compat.v1.Session().as_default() as session:
            variable = tf.compat.v1.get_variable("v", initializer=[float(RANK)])
            session.run(tf.compat.v1.global_variables_initializer())
            module.broadcast_global_variables(1)
            same(session.run(variable), [1])


def optimizer():
    sgd = lambda: keras.optimizers.SGD(1.0)  # noqa: E731
    for module in (hvd, tf_hvd):
        for options in ({}, {"gradient_predivide_factor": 2.0}, {"groups": 1}):
            made = module.DistributedOptimizer(sgd(), **options)
            assert isinstance(made, keras.optimizers.SGD)
            same(trained(linear(made))[1], TOTAL / SIZE)
        made = module.DistributedOptimizer(sgd(), op=hvd.Sum, compression=hvd.Compression.fp16)
        same(trained(linear(made, jit_compile=False))[1], TOTAL)
    for average, factor in ((False, 2), (True, 1)):
        options = {"backward_passes_per_step": 2, "average_aggregated_gradients": average}
        for compiled in (False, True):
            made = tf_hvd.DistributedOptimizer(sgd(), **options)
            weight = trained(linear(made, jit_compile=compiled), batches=2)[1]
            same(weight, factor * TOTAL / SIZE)
    members = range(0, SIZE, 2)
    made = tf_hvd.DistributedOptimizer(sgd(), process_set=EVENS)
    if EVENS.included():
        mean = sum(each + 1 for each in members) / len(members)
        same(trained(linear(made, jit_compile=False))[1], mean)
    else:
        same(trained(linear(made, jit_compile=False))[1], RANK + 1)  # alone
    refused(ValueError, "Adasum", lambda: hvd.DistributedOptimizer(sgd(), op=hvd.Adasum))
    scaled = keras.optimizers.LossScaleOptimizer(sgd())
    refused(ValueError, "loss scaling", lambda: hvd.DistributedOptimizer(scaled))
    wrap = lambda: keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(sgd()))  # noqa: E731
    refused(ValueError, "another optimizer wraps", wrap)
    conflict = {"op": hvd.Sum, "gradient_predivide_factor": 2.0}
    refused(ValueError, "op is not Average", lambda: hvd.DistributedOptimizer(sgd(), **conflict))


def copies():
    serialize, deserialize = keras.optimizers.serialize, keras.optimizers.deserialize
    sgd = lambda: keras.optimizers.SGD(1.0)  # noqa: E731
    for made, batches, weight in (
        (hvd.DistributedOptimizer(sgd(), op=hvd.Sum), 1, TOTAL),
        (tf_hvd.DistributedOptimizer(sgd(), backward_passes_per_step=2), 2, 2 * TOTAL / SIZE),
    ):
        for each in (
            copy.copy(made),
            copy.deepcopy(copy.deepcopy(made)),
            pickle.loads(pickle.dumps(made)),
            type(made).from_config(made.get_config()),
            deserialize(serialize(made)),
        ):
            same(trained(linear(each), batches=batches)[1], weight)
    original = deserialize(json.loads(json.dumps(serialize(made))))
    assert not hasattr(original, "register_local_var")  # as when loaded from a saved model
    made.register_local_var(linear("sgd").layers[-1].kernel)
    refused(ValueError, "cannot be copied", lambda: copy.deepcopy(made))


def delegating():
    inner = lambda: keras.optimizers.MultiOptimizer(  # noqa: E731
        keras.optimizers.OptimizerMap(keras.optimizers.SGD(1.0))
    )
    same(trained(linear(hvd.DistributedOptimizer(inner(), op=hvd.Sum)))[1], TOTAL)
    for average, factor in ((False, 2), (True, 1)):
        options = {"backward_passes_per_step": 2, "average_aggregated_gradients": average}
        made = tf_hvd.DistributedOptimizer(inner(), **options)
        same(trained(linear(made), batches=2)[1], factor * TOTAL / SIZE)


def sparse():
    for dense in (False, True):
        inputs = keras.Input([1], dtype="int32")
        model = keras.Model(inputs, keras.layers.Embedding(SIZE, 1, "zeros")(inputs))
        made = hvd.DistributedOptimizer(
            keras.optimizers.SGD(1.0), sparse_as_dense=dense, op=hvd.Sum
        )
        model.compile(made, lambda true, predicted: -predicted, jit_compile=False)
        model.fit(np.array([[RANK]]), np.zeros([1, 1]), verbose=0)
        same(model.layers[1].embeddings.numpy()[:, 0], [1] * SIZE)


def partial():
    model = linear("sgd")
    layer = model.layers[-1]
    for scales, weight in ((True, (RANK + 1) / SIZE), (False, RANK + 1)):
        layer.kernel.assign([[0.0]])
        options = {"local_layers": layer, "scale_local_gradients": scales}
        made = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), **options)
        model.compile(made, model.loss)
        same(trained(model)[1], weight)
    refused(
        ValueError,
        "neither a layer",
        lambda: hvd.PartialDistributedOptimizer(keras.optimizers.SGD(), local_layers=[3]),
    )


def broadcast_callback():
    for keeps, module in ((False, hvd), (True, hvd), (False, tf_hvd)):
        model = linear(keras.optimizers.SGD(0.0, momentum=0.5))
        model.layers[-1].kernel.assign([[RANK + 5.0]])
        kept = model.layers[-1].kernel if keeps else None
        callback = module.callbacks.BroadcastGlobalVariablesCallback(1, local_variables=kept)
        same(trained(model, callbacks=[callback])[1], RANK + 5 if keeps else 6)
        momentum = model.optimizer.variables[-1].numpy()
        same(hvd.allgather(momentum), np.repeat(momentum, SIZE, axis=0))
    bad = lambda: hvd.callbacks.BroadcastGlobalVariablesCallback(0, "", [3])  # noqa: E731
    refused(ValueError, "local_variables", bad)


def metrics_callback():
    for module in (hvd, tf_hvd):
        model = linear("sgd", metrics=[lambda true, predicted: true])
        history, _ = trained(model, callbacks=[module.callbacks.MetricAverageCallback()])
        (name,) = (each for each in history.history if each != "loss")
        same(history.history[name], [TOTAL / SIZE])


def rates_callbacks():
    schedule = hvd.callbacks.LearningRateScheduleCallback
    history, _ = trained(
        linear("sgd"), epochs=4, callbacks=[schedule(0.8, 0.5, start_epoch=1, end_epoch=3)]
    )
    same(history.history["lr"], [0.01, 0.8, 0.4, 0.4])
    for corrects, weight in ((True, 1.4), (False, 1.6)):  # the average of the rates 0.8 and 0.4
        model = linear(keras.optimizers.SGD(momentum=0.5))
        halved = schedule(0.8, 0.5, momentum_correction=corrects)
        same(trained(model, epochs=2, callbacks=[halved])[1], weight * (RANK + 1))
    schedule = tf_hvd.callbacks.LearningRateScheduleCallback
    smooth = schedule(1.0, lambda epoch: 1 + epoch, staircase=False, momentum_correction=False)
    history, _ = trained(linear("sgd"), batches=4, epochs=2, callbacks=[smooth])
    same(history.history["lr"], [1.75, 2.75])
    for module in (hvd, tf_hvd):
        warmup = module.callbacks.LearningRateWarmupCallback(1.0, warmup_epochs=2, verbose=1)
        history, _ = trained(linear("sgd"), batches=4, epochs=3, callbacks=[warmup])
        same(history.history["lr"], [(0.5 * (SIZE - 1) + 1) / SIZE, 1, 1])
    unknown = schedule(1.0, 0.5, staircase=False)
    unknown.set_params({})
    refused(ValueError, "steps_per_epoch", unknown.on_train_begin)


def saved_models():
    path = f"model{RANK}.keras"
    model = keras.Sequential(
        [keras.Input([1]), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
    )
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0, momentum=0.5)), "mse")
    trained(model)
    for module, best in (
        (hvd, hvd.callbacks.BestModelCheckpoint(monitor="loss")),
        (tf_hvd, tf_hvd.callbacks.BestModelCheckpoint("loss", 0, False)),
    ):
        refused(ValueError, "filepath", best.on_train_begin)
        best.filepath = path
        trained(model, callbacks=[best])
        loaded = module.load_model(path, compression=hvd.Compression.fp16)
        same(loaded.layers[-1].kernel, model.layers[-1].kernel)
        same(loaded.optimizer.variables[-1], model.optimizer.variables[-1])
        assert hasattr(loaded.optimizer, "register_local_var")
        trained(loaded)
        weights = hvd.allgather(loaded.layers[-1].kernel)
        same(weights, np.repeat(weights[:1], SIZE, axis=0))
    plain = keras.models.load_model(path)
    assert type(plain.optimizer) is keras.optimizers.SGD
    refused(ValueError, "legacy_opts", lambda: hvd.load_model(path, legacy_opts=True))


for part in (
    *(world, operations, optimizer, sparse, partial, broadcast_callback, metrics_callback),
    *(rates_callbacks, saved_models, copies, delegating),
):
    part()
    print("done", part.__name__, flush=True)
for module in (hvd, tf_hvd):
    module.shutdown()
    assert not hvd.is_initialized() and not tf_hvd.is_initialized()
    module.init()
tf_hvd.shutdown()
print("used keras", *hvd.used)
print("used tensorflow.keras", *tf_hvd.used)
