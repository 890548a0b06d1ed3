# SPDX-License-Identifier: Apache-2.0
"""Run by test_keras on any number of ranks, with any backend of Keras: model.fit with all functions
of ddl_keras. Prints the losses of each variant, which the test compares with the losses of one
process.

    python keras_training.py FOLDER [interpreted] [losses]

interpreted: of TensorFlow, where there is no compiler, so without XLA. losses: nothing else.
"""

import json
import sys
from pathlib import Path

import keras
import numpy as np

import ddl_keras as ddl
from ddl_core.errors import InvalidArgument

SAMPLES, BATCH, EPOCHS = 96, 24, 2
FOLDER = Path(sys.argv[1])

ddl.init()
rank, size = ddl.rank(), ddl.size()
backend = keras.backend.backend()

random = np.random.default_rng(0)
inputs = random.normal(size=(SAMPLES, 6)).astype(np.float32)
outputs = (inputs @ random.normal(size=(6, 2))).astype(np.float32)
# Each rank has its part of every batch, in the order of the batches.
batches = np.arange(SAMPLES).reshape(-1, size, BATCH // size)
mine = batches[:, rank].reshape(-1)


def network(*, normalized: bool = False) -> keras.Model:
    keras.utils.set_random_seed(1 + rank)  # other weights on each rank, until they are broadcast
    layers = [keras.Input((6,)), keras.layers.Dense(8, activation="tanh")]
    layers += [ddl.SyncBatchNormalization()] * normalized
    return keras.Sequential([*layers, keras.layers.Dense(2)])


def weights_of(model: keras.Model) -> np.ndarray:
    values = [keras.ops.convert_to_numpy(variable.value) for variable in model.variables]
    return np.concatenate([value.astype(np.float32).reshape(-1) for value in values])


def everyones(values: np.ndarray) -> np.ndarray:
    gathered = ddl.allgather(keras.ops.convert_to_tensor(values[None]))
    return np.asarray(keras.ops.convert_to_numpy(gathered))


def train(model: keras.Model, optimizer, *more, epochs: int = EPOCHS, **options) -> list[float]:
    if not hasattr(optimizer, "_ddl_settings"):
        optimizer = ddl.DistributedOptimizer(optimizer)
    model.compile(optimizer, "mse", **options)
    callbacks = [ddl.callbacks.BroadcastModel(), ddl.callbacks.AverageMetrics(), *more]
    history = model.fit(
        inputs[mine],
        outputs[mine],
        batch_size=BATCH // size,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=callbacks,
    )
    weights = everyones(weights_of(model))
    assert (weights == weights[0]).all(), "the ranks' weights differ"
    return history.history["loss"]


ways = {"graph": {}}
if backend != "torch":
    ways["eager"] = {"run_eagerly": True}
    if "interpreted" not in sys.argv:
        ways["jit"] = {"jit_compile": True}
losses = {}
for way, options in ways.items():
    losses[way] = train(network(), keras.optimizers.SGD(0.05, momentum=0.9), **options)
losses["clipped"] = train(network(), keras.optimizers.Adam(0.01, clipnorm=0.1))
losses["normalized"] = train(network(normalized=True), "sgd")

# Gradients that are accumulated over several batches, and gradients that are sent as bfloat16.
passes = keras.optimizers.SGD(0.05, gradient_accumulation_steps=2)
losses["accumulated"] = train(network(), passes)
scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05))
scaled = ddl.DistributedOptimizer(scaled, backward_passes_per_step=2)
assert scaled.inner_optimizer.gradient_accumulation_steps == 2
losses["scaled and accumulated"] = train(network(), scaled)
if "losses" in sys.argv:
    print(json.dumps(losses), flush=True)
    ddl.shutdown()
    sys.exit()
narrow = network()
narrow.compile(ddl.DistributedOptimizer("sgd", compression="bf16", op="sum"), "mse")
narrow.fit(inputs[mine], outputs[mine], batch_size=BATCH // size, verbose=0)

# With mixed_float16, Keras scales the loss by itself. Only the last rank has infinities, in every
# second batch.
keras.config.set_dtype_policy("mixed_float16")
mixed = ddl.DistributedOptimizer(keras.optimizers.SGD(0.05))
assert type(mixed) is not keras.optimizers.LossScaleOptimizer
assert isinstance(mixed, keras.optimizers.LossScaleOptimizer)
plain = inputs
if rank == size - 1:
    inputs = np.where(np.arange(SAMPLES)[:, None] // BATCH % 2, np.float32(np.inf), inputs)
model = network()
train(model, mixed)
assert model.optimizer is mixed
assert int(keras.ops.convert_to_numpy(mixed.iterations)) == EPOCHS * SAMPLES // BATCH // 2
inputs = plain
keras.config.set_dtype_policy("float32")

# ---- callbacks ----

rates = []


class Rates(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if backend == "jax":
            self.model.jax_state_sync()
        rates.append(float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)))


class Epochs(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        own = np.array([logs["loss"]], np.float32)
        assert (everyones(own) == own).all()  # averaged before these callbacks run


timeline = FOLDER / "timeline-{rank}.json"
model = network()
train(
    model,
    keras.optimizers.SGD(0.01),
    Epochs(),
    ddl.callbacks.LearningRateWarmup(0.01, epochs=1, scale=3),
    ddl.callbacks.LearningRateSchedule(0.03, lambda epoch: 0.5, start=2),
    ddl.callbacks.Checkpoint(FOLDER / "model.keras"),
    ddl.callbacks.Timeline(timeline),
    Rates(),
    epochs=3,
)
steps = SAMPLES // BATCH
expected = [0.01 * (1 + 2 * step / steps) for step in range(steps)]
expected += [0.03] * steps + [0.015] * steps
np.testing.assert_allclose(rates, expected, rtol=1e-5)
events = json.loads((FOLDER / f"timeline-{rank}.json").read_text())["traceEvents"]
assert sum(event["name"] == "batch" for event in events) == 2 * 3 * steps
assert {event["pid"] for event in events} == {rank}

# Only rank 0 has saved a file.
ddl.barrier()
assert sorted(file.name for file in FOLDER.glob("*.keras")) == ["model.keras"]
averages = ddl.average_metrics({"b": rank, "a": 1.0}, weight=1 + rank)
assert list(averages) == ["b", "a"] and averages["a"] == 1

normalized = network(normalized=True)
if rank == 0:
    normalized.save(FOLDER / "normalized.keras")

for wrong in ({"op": "max"}, {"compression": "f8"}, {"backward_passes_per_step": 0}):
    try:
        ddl.DistributedOptimizer("adam", **wrong)
    except InvalidArgument as error:
        assert next(iter(wrong)) in str(error)
    else:
        raise AssertionError(wrong)
ddl.shutdown()
if rank == 0:
    print(json.dumps(losses), flush=True)
