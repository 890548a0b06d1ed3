# SPDX-License-Identifier: Apache-2.0
"""Run by test_keras on two ranks or more, with any backend of Keras. Each rank creates other
weights and has other samples, and all must end with equal weights. Prints "done NAME" for each
part.

    python keras_equal.py FOLDER
"""

import copy
import json
import pickle
import sys
import threading
from pathlib import Path

import keras
import numpy as np
from checks import refused

import ddl_keras as ddl
from ddl_core.errors import InvalidArgument
from ddl_keras.callbacks import AverageMetrics, BroadcastModel

FOLDER = Path(sys.argv[1])
ddl.init(timeout=60)
RANK, SIZE = ddl.rank(), ddl.size()
TENSORFLOW = keras.backend.backend() == "tensorflow"
KO = keras.optimizers
random = np.random.default_rng(RANK)
INPUTS = random.normal(size=(16, 4)).astype(np.float32)
OUTPUTS = INPUTS.sum(1, keepdims=True)


class Subclassed(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.first = keras.layers.Dense(8, "tanh")
        self.last = keras.layers.Dense(1, dtype="float32")

    def call(self, inputs):
        return self.last(self.first(inputs))


def network(*, built=True):
    layers = [keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((4,)), *layers] if built else layers)


def fit(model, optimizer, *callbacks, inputs=INPUTS, **options):
    options = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0, **options}
    if optimizer is not None:
        model.compile(optimizer, keras.losses.MeanSquaredError())
    model.fit(inputs, OUTPUTS, callbacks=list(callbacks), **options)
    return model


def weights_of(model):
    values = [keras.ops.convert_to_numpy(each.value).reshape(-1) for each in model.weights]
    return np.concatenate(values).astype(np.float32)


def everyones(values):
    values = np.asarray(values, np.float32)
    return np.asarray(
        keras.ops.convert_to_numpy(ddl.allgather(keras.ops.convert_to_tensor(values[None])))
    )


def assert_equal(model, what):
    everyone = everyones(weights_of(model))
    assert np.isfinite(everyone).all() and (everyone == everyone[0]).all(), f"{what}: they differ"


def iterations(optimizer):
    return int(keras.ops.convert_to_numpy(optimizer.iterations))


def unbuilt():
    for make in (lambda: network(built=False), Subclassed):
        model = fit(make(), ddl.DistributedOptimizer("adam"), BroadcastModel())
        assert_equal(model, make)
        # With one batch in an epoch, validation runs before the second batch.
        validation = {"batch_size": 16, "epochs": 1, "validation_data": (INPUTS, OUTPUTS)}
        model = fit(make(), ddl.DistributedOptimizer("adam"), BroadcastModel(), **validation)
        assert_equal(model, "one batch")
    refused(InvalidArgument, "not built", ddl.broadcast_model, network(built=False))
    # If one rank alone raises an error, all ranks get one.
    model = network(built=RANK > 0)
    refused(
        InvalidArgument,
        "not built" if RANK == 0 else "on this rank it is built",
        ddl.broadcast_model,
        model,
    )
    refused(
        InvalidArgument,
        "variables on this rank",
        ddl.broadcast_model,
        keras.Sequential([keras.Input((4,)), *(keras.layers.Dense(1) for _ in range(1 + RANK))]),
    )


class Starts(keras.callbacks.Callback):
    """Records the weights with which training starts."""

    def on_train_batch_begin(self, batch, logs=None):
        if self.model.built and not hasattr(self, "weights"):
            if keras.backend.backend() == "jax":
                self.model.jax_state_sync()
            self.weights = weights_of(self.model)
            self.iterations = iterations(self.model.optimizer)
            self.slots = [
                keras.ops.convert_to_numpy(each.value).sum()
                for each in self.model.optimizer.variables
            ]


def root_checkpoint():
    file = FOLDER / "root.keras"
    if RANK == 0:
        fit(network(), KO.Adam(0.01)).save(file)
    for built in (True, False):
        if RANK == 0:
            model = keras.models.load_model(file)
            saved = weights_of(model)
            model.compile(ddl.DistributedOptimizer(model.optimizer), "mse")
        else:
            model, saved = network(built=built), np.zeros(49)
            model.compile(ddl.DistributedOptimizer(KO.Adam(0.01)), "mse")
        saved = everyones(saved)[0]
        starts = Starts()
        one = {} if built or not TENSORFLOW else {"batch_size": 16, "epochs": 1}
        fit(model, None, BroadcastModel(), starts, **one)
        assert_equal(model, "loaded")
        if one:  # the first batch ran before them: the root's state replaced its step
            assert (weights_of(model) == saved).all() and iterations(model.optimizer) == 8
        else:
            assert (starts.weights == saved).all() and starts.iterations == 8
            slots = everyones(np.array(starts.slots))
            assert (slots == slots[0]).all() and (slots[0][2:] != 0).any(), slots
            assert iterations(model.optimizer) == 16


def delegating():
    def multi(**options):
        return KO.MultiOptimizer(
            KO.OptimizerMap(KO.SGD(0.1, **options), {".*bias": KO.Adam(0.01, **options)})
        )

    for passes in (None, 2):
        optimizer = ddl.DistributedOptimizer(multi(), backward_passes_per_step=passes)
        assert_equal(fit(network(), optimizer, BroadcastModel()), f"multi {passes}")
        assert {each.gradient_accumulation_steps for each in optimizer.optimizers} == {passes}
    inner = ddl.DistributedOptimizer(KO.SGD(0.1)), ddl.DistributedOptimizer(KO.Adam(0.01))
    outer = KO.MultiOptimizer(KO.OptimizerMap(inner[0], {".*bias": inner[1]}))
    assert_equal(fit(network(), outer, BroadcastModel()), "inside")
    refused(InvalidArgument, "already", ddl.DistributedOptimizer, outer)
    by_function = KO.MultiOptimizer(lambda variable: KO.SGD(0.1))
    refused(
        *(InvalidArgument, "gradient_accumulation_steps=2", ddl.DistributedOptimizer, by_function),
        backward_passes_per_step=2,
    )
    scaled = KO.LossScaleOptimizer(multi())
    optimizer = ddl.DistributedOptimizer(scaled, backward_passes_per_step=2)
    assert_equal(fit(network(), optimizer, BroadcastModel()), "scaled multi")

    class Own(KO.SGD):
        def apply(self, grads, trainable_variables=None):
            super().apply([2 * each for each in grads], trainable_variables)

    for passes in (None, 2):
        optimizer = ddl.DistributedOptimizer(Own(0.01), backward_passes_per_step=passes)
        assert_equal(fit(network(), optimizer, BroadcastModel()), f"own {passes}")


COPIES = {
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda each: pickle.loads(pickle.dumps(each)),
    "class and config": lambda each: type(each).from_config(each.get_config()),
    "serialize": lambda each: KO.deserialize(copy.deepcopy(KO.serialize(each))),
    "get": lambda each: KO.get(keras.saving.serialize_keras_object(each)),
}


def copies():
    by_sum = ddl.DistributedOptimizer(KO.SGD(0.5), op="sum")  # another optimizer of the same class
    assert by_sum
    for name, copied in COPIES.items():
        made = {
            "plain": ddl.DistributedOptimizer(KO.Adam(0.01), compression="bf16"),
            "passes": ddl.DistributedOptimizer(KO.SGD(0.01), backward_passes_per_step=2),
            "scaled": ddl.DistributedOptimizer(KO.LossScaleOptimizer(KO.SGD(0.01))),
            "multi": ddl.DistributedOptimizer(KO.MultiOptimizer(KO.OptimizerMap(KO.SGD(0.01)))),
        }
        for kind, original in made.items():
            another = copied(original)
            assert another is not original and type(another).__name__ == type(original).__name__
            assert another._ddl_settings == original._ddl_settings, (name, kind)
            again = copied(another)
            if kind == "plain" or name == "deepcopy":
                assert_equal(fit(network(), again, BroadcastModel(), epochs=1), (name, kind))
    serialized = KO.serialize(made["plain"])
    refused(InvalidArgument, "pickle the object", pickle.dumps, serialized)
    # A saved file contains the original optimizer.
    plain = KO.deserialize(json.loads(json.dumps(serialized)))
    assert not hasattr(plain, "_ddl_settings") and isinstance(plain, KO.Adam)
    model = fit(network(), made["plain"], BroadcastModel())
    for suffix in ("keras", "h5"):
        file = FOLDER / f"saved-{RANK}.{suffix}"
        model.save(file)
        loaded = keras.models.load_model(file).optimizer
        assert not hasattr(loaded, "_ddl_settings") and isinstance(loaded, KO.Adam)
        assert iterations(loaded) == iterations(model.optimizer)


def scaled():
    """Train a model of dtype mixed_float16 under a float32 policy. Only the last rank has
    infinities, in the second of four batches."""
    inputs = INPUTS.copy()
    if RANK == SIZE - 1:
        inputs[5] = np.inf
    for passes in (1, 3):
        optimizer = ddl.DistributedOptimizer(KO.SGD(0.01), backward_passes_per_step=passes)
        for _ in range(2):  # compile wraps the same optimizer again
            model = Subclassed(dtype="mixed_float16")
            model.compile(copy.deepcopy(optimizer), "mse")
            assert isinstance(model.optimizer, KO.LossScaleOptimizer)
            model.compile(model.optimizer.inner_optimizer, "mse")
            fit(model, None, BroadcastModel(), inputs=inputs, epochs=1)
            assert_equal(model, "mixed")
            # On TensorFlow the first batch creates the variables.
            assert iterations(model.optimizer) == 3 // passes
    by_hand = KO.LossScaleOptimizer(ddl.DistributedOptimizer(KO.SGD(0.01)))
    assert_equal(fit(network(), by_hand, BroadcastModel(), inputs=inputs), "by hand")
    assert iterations(by_hand) == 6


LAYER_COPIES = {
    **{name: COPIES[name] for name in ("deepcopy", "pickle", "class and config")},
    "serialize": lambda each: keras.layers.deserialize(keras.layers.serialize(each)),
    "clone": lambda each: keras.models.clone_model(keras.Sequential([each])).layers[0],
    "model": lambda each: keras.Sequential.from_config(
        keras.Sequential([keras.Input((4,)), each]).get_config()
    ).layers[0],
}


def layer_copies():
    parts = [] if keras.backend.backend() == "torch" else [ddl.split(RANK)]
    for name, copied in LAYER_COPIES.items():
        for options in ({}, *({"comm": part} for part in parts)):
            original = ddl.SyncBatchNormalization(momentum=0.0, **options)
            if options and name == "pickle":  # other processes lack the file
                refused(TypeError, "cannot be copied or pickled", copied, original)
                continue
            layer = copied(copied(original))
            layer(INPUTS, training=True)
            mean = everyones(keras.ops.convert_to_numpy(layer.moving_mean))
            assert (mean == mean[0]).all() == (not options), (name, options)
            assert isinstance(layer, ddl.SyncBatchNormalization)
    plain = keras.layers.deserialize(json.loads(json.dumps(keras.layers.serialize(original))))
    assert type(plain) is keras.layers.BatchNormalization


class Draws(keras.callbacks.Callback):
    def on_train_end(self, logs=None):
        drawn = self.model.layers[0](keras.ops.ones((1, 64)), training=True)
        self.mask = keras.ops.convert_to_numpy(drawn)[0] != 0


def masks():
    draws = Draws()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    fit(model, ddl.DistributedOptimizer("sgd"), BroadcastModel(), draws)
    masks = everyones(draws.mask)
    assert len(np.unique(masks, axis=0)) == SIZE, "ranks drop out the same"


def threads():
    if not TENSORFLOW:  # otherwise operations are matched by their order
        return
    models = [fit(network(), ddl.DistributedOptimizer("sgd"), BroadcastModel()) for _ in range(2)]
    both = [
        threading.Thread(target=fit, args=(model, None), kwargs={"epochs": 10}) for model in models
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    for model in models:
        assert iterations(model.optimizer) == 48
        assert_equal(model, "two threads")


def metrics():
    model = network()
    model.compile(ddl.DistributedOptimizer("sgd"), "mse", metrics=["mae"])
    fit(model, None, BroadcastModel())
    own = model.evaluate(INPUTS, OUTPUTS, verbose=0)
    expected = everyones(own).mean(0)
    for _ in range(2):
        averaged = model.evaluate(INPUTS, OUTPUTS, verbose=0, callbacks=[AverageMetrics()])
        np.testing.assert_allclose(averaged, expected, rtol=1e-6)
        everyone = everyones(averaged)
        assert (everyone == everyone[0]).all()
    named = model.evaluate(
        INPUTS, OUTPUTS, verbose=0, return_dict=True, callbacks=[AverageMetrics()]
    )
    assert named["loss"] == averaged[0]
    assert model.evaluate(INPUTS, OUTPUTS, verbose=0) == own  # without the callback
    history = model.fit(
        *(INPUTS, OUTPUTS),
        validation_data=(INPUTS, OUTPUTS),
        verbose=0,
        callbacks=[AverageMetrics()],
    ).history
    everyone = everyones([history[name][0] for name in sorted(history)])
    assert (everyone == everyone[0]).all()
    # In float64, and by name.
    tiny = 1e39 * (1 + 1e-12 * RANK)
    expected = sum(1e39 * (1 + 1e-12 * rank) for rank in range(SIZE)) / SIZE
    averaged = ddl.average_metrics({"a": tiny, "b": float(RANK)})
    assert averaged == {"a": expected, "b": (SIZE - 1) / 2}, averaged
    other = {"a": 1.0, "c" if RANK else "b": 2.0}
    refused(InvalidArgument, "another rank has other names", ddl.average_metrics, other)
    assert ddl.average_metrics({"a": 1.0}) == {"a": 1.0}


for part in (
    *(unbuilt, root_checkpoint, delegating, copies, layer_copies, scaled, masks, threads, metrics),
):
    part()
    print("done", part.__name__, flush=True)
ddl.shutdown()
