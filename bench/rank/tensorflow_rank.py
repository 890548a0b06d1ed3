"""One rank of bench/training_tensorflow.py: makes programs, runs them when told, and sleeps in
between.

    python tensorflow_rank.py DOOR SOCKET

DOOR is "ddl" or "mirrored", tf.distribute.MultiWorkerMirroredStrategy. SOCKET is the scheduler's.
Lines of JSON go both ways: see `Worker` and `Steps`.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["NUMPY_MADVISE_HUGEPAGE"] = "0"  # TensorFlow's memory has small pages too

import keras
import numpy as np
import tensorflow as tf
from command_loop import Program, Steps, run_commands

RANK, SIZE = int(os.environ["DDL_RANK"]), int(os.environ["DDL_SIZE"])
SETTLED = 1  # steps after which the weights are compared; rounding grows with every further one
CLASSES, IMAGES, PIXELS = 1000, 8, 64  # of a step, on each rank
BYTES, WIDTH, LAYERS, HEADS = 256, 512, 6, 16
PIECES, CONTEXT = 4, 64  # of text
RATE, MOMENTUM = 1e-3, 0.9


class Ddl:
    """ddl_tensorflow in a training loop of one's own, as a graph and compiled by XLA."""

    def __init__(self) -> None:
        import ddl_tensorflow as ddl

        ddl.init()
        self.ddl = ddl

    def training(self, what: str) -> tuple[dict[str, Program], dict[str, Any]]:
        """The programs by name, and what the scheduler is to know. "alone" and "alone, jit" have no
        communication, but wait for each other in the end."""
        programs, told = {}, {}
        for name, jit in (("ddl", False), ("ddl, jit", True)):
            programs[name], model = self._training(what, jit, self.ddl.allreduce_gradients)
            for _ in range(SETTLED):
                programs[name]()
            told = describe(model)
            alone, _ = self._training(what, jit, lambda gradients: gradients)
            programs[name.replace("ddl", "alone")] = self._in_step(alone)
        variables = [tf.Variable(tf.ones_like(each)) for each in model.trainable_variables]
        programs["exchange"] = exchange(variables, self.ddl.grouped_allreduce)
        return programs, told

    def _training(self, what: str, jit: bool, reduce: Any) -> tuple[Program, keras.Model]:
        model, optimizer, x, y, loss = task(what)

        @tf.function(jit_compile=jit, autograph=False)
        def step() -> Any:
            with tf.GradientTape() as tape:
                result = loss(y, model(x, training=True))
            gradients = reduce(tape.gradient(result, model.trainable_variables))
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return result

        return lambda: step().numpy(), model

    def _in_step(self, step: Program) -> Program:
        def both() -> None:
            step()
            self.ddl.barrier()

        return both

    def gradients(self) -> tuple[dict[str, Program], dict[str, Any]]:
        """The gradients of the convolutional net as one group: steps that make them, wait for the
        other ranks, reduce and apply them. As a graph, compiled, and bare, by the group of ddl_core
        on arrays of the same sizes. Those of "graph" and "bare" return what the group took in
        them; "..., alone" have none."""
        import ddl_core

        model = task("resnet50")[0]
        shapes = [each.shape for each in model.trainable_variables]
        variables = [tf.Variable(tf.ones(shape)) for shape in shapes]
        arrays = [np.ones(shape, np.float32) for shape in shapes]
        world = ddl_core.init()
        group = world.group()
        for array in arrays:
            group.allreduce(array, op="average")

        def reduce(gradients: Sequence[Any]) -> list[Any]:
            return self.ddl.grouped_allreduce(gradients, "average")

        def nothing(gradients: Sequence[Any]) -> Sequence[Any]:
            return gradients

        programs = {
            "bare": bare(arrays, world.barrier, group.submit),
            "bare, alone": bare(arrays, world.barrier, lambda: None),
            "graph": in_graph(variables, self.ddl.barrier, reduce),
            "graph, alone": in_graph(variables, self.ddl.barrier, nothing),
            "jit": compiled(variables, world.barrier, reduce),
            "jit, alone": compiled(variables, world.barrier, nothing),
        }
        told = {"bytes": sum(array.nbytes for array in arrays), "tensors": len(arrays)}
        return programs, told


class Mirrored:
    """MultiWorkerMirroredStrategy with the same models and batches. TF_CONFIG names the others."""

    def __init__(self) -> None:
        self.strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def training(self, what: str) -> tuple[dict[str, Program], dict[str, Any]]:
        with self.strategy.scope():
            model, optimizer, x, y, loss = task(what)
            variables = [tf.Variable(tf.ones_like(each)) for each in model.trainable_variables]

        def of_replica() -> Any:
            with tf.GradientTape() as tape:
                result = loss(y, model(x, training=True)) / SIZE  # gradients are added up
            gradients = tape.gradient(result, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return result

        @tf.function(autograph=False)
        def step() -> Any:
            return self.strategy.run(of_replica)

        programs: dict[str, Program] = {"mirrored": lambda: step().numpy()}
        for _ in range(SETTLED):
            programs["mirrored"]()
        told = describe(model)

        def added(gradients: Sequence[Any]) -> Any:
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)

        def of_all(reduce: Program) -> Any:
            return self.strategy.run(reduce)

        programs["exchange"] = exchange(variables, added, of_all)
        return programs, told


def bare(arrays: Sequence[Any], meet: Program, submit: Program) -> Program:
    def step() -> float:
        for array in arrays:
            np.multiply(array, 1.0, out=array)
        meet()
        start = time.perf_counter()
        submit()
        return time.perf_counter() - start

    return step


def in_graph(variables: Sequence[tf.Variable], meet: Any, reduce: Any) -> Program:
    factor = tf.Variable(1.0)  # TensorFlow would make one product of two by constants

    @tf.function(autograph=False)
    def step() -> Any:
        gradients = [each * factor for each in variables]
        with tf.control_dependencies(gradients):
            met = meet()
        with tf.control_dependencies([met]):
            start = tf.timestamp()
        with tf.control_dependencies([start]):
            reduced = reduce([tf.identity(each) for each in gradients])
        with tf.control_dependencies(reduced):
            end = tf.timestamp()
        with tf.control_dependencies([end]):
            for variable, gradient in zip(variables, reduced, strict=True):
                variable.assign_sub(RATE * gradient)
        return end - start

    return lambda: float(step())


def compiled(variables: Sequence[tf.Variable], meet: Program, reduce: Any) -> Program:
    @tf.function(jit_compile=True, autograph=False)
    def step() -> Any:
        gradients = [each * 1.0000001 for each in variables]
        reduced = reduce(gradients)
        for variable, gradient in zip(variables, reduced, strict=True):
            variable.assign_sub(RATE * gradient)
        # Those that nobody reduces would not be made at all, if nobody got them.
        return gradients if reduced is gradients else [reduced[0][..., 0]]

    def both() -> None:
        meet()
        step()[0].numpy()

    return both


def exchange(variables: Sequence[Any], reduce: Any, within: Any = lambda of: of()) -> Program:
    """The reduction of gradients that are all there already."""

    @tf.function(autograph=False)
    def step() -> Any:
        def reduced() -> Any:
            gradients = reduce([each * 1.0000001 for each in variables])
            return tf.add_n([tf.reshape(each, [-1])[0] for each in gradients])

        return within(reduced)

    return lambda: step().numpy()


# ---- the models ----


def task(what: str) -> tuple[keras.Model, Any, tf.Tensor, tf.Tensor, Any]:
    """A model of equal weights on all ranks, its optimizer, and this rank's batch, which stays the
    same."""
    keras.utils.set_random_seed(1)
    model, classes, count = {"resnet50": resnet50, "transformer": transformer}[what]()
    random = np.random.default_rng(RANK)
    if what == "resnet50":
        x = random.normal(size=(IMAGES, PIXELS, PIXELS, 3)).astype(np.float32)
    else:
        x = random.integers(BYTES, size=(PIECES, CONTEXT)).astype(np.int32)
    y = random.integers(classes, size=count).astype(np.int32)
    optimizer = keras.optimizers.SGD(RATE, momentum=MOMENTUM)
    optimizer.build(model.trainable_variables)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)
    return (
        model,
        optimizer,
        tf.constant(x),
        tf.constant(y),
        lambda *given: tf.reduce_mean(loss(*given)),
    )


def resnet50() -> tuple[keras.Model, int, tuple[int, ...]]:
    model = keras.applications.ResNet50(
        weights=None,
        input_shape=(PIXELS, PIXELS, 3),
        classes=CLASSES,
        classifier_activation=None,
    )
    return model, CLASSES, (IMAGES,)


def transformer() -> tuple[keras.Model, int, tuple[int, ...]]:
    layers = keras.layers
    text = keras.Input((CONTEXT,), dtype="int32")
    places = layers.Embedding(CONTEXT, WIDTH)(keras.ops.arange(CONTEXT))
    x = layers.Embedding(BYTES, WIDTH)(text) + places
    for _ in range(LAYERS):
        normal = layers.LayerNormalization()(x)
        attention = layers.MultiHeadAttention(HEADS, WIDTH // HEADS)
        x = x + attention(normal, normal, use_causal_mask=True)
        hidden = layers.Dense(4 * WIDTH, "relu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(WIDTH)(hidden)
    x = layers.Dense(BYTES)(layers.LayerNormalization()(x))
    return keras.Model(text, x), BYTES, (PIECES, CONTEXT)


def describe(model: keras.Model) -> dict[str, Any]:
    weights = [np.asarray(each.numpy()) for each in model.trainable_variables]
    return {
        "parameters": sum(each.size for each in weights),
        "buckets": [sum(each.nbytes for each in weights)],
        "sums": [float(np.abs(each).sum()) for each in weights],
    }


# ---- being told what to do ----


class Worker(Steps):
    """Carries out commands; each has one answer.

    prepare    what: make the programs; answers with what is to be known of them
    alternate  steps: of every program, in turns; answers with the seconds of each, and of the group
               in it where the program tells
    """

    def prepare(self, what: str) -> dict[str, Any]:
        if what == "gradients":
            self.programs, told = self.peer.gradients()
        else:
            self.programs, told = self.peer.training(what)
        self.warm_up()
        return {**told, "programs": list(self.programs)}

    def alternate(self, steps: int) -> dict[str, Any]:
        names, clock = list(self.programs), time.perf_counter
        seconds: dict[str, list[float]] = {name: [] for name in names}
        groups: dict[str, list[float]] = {name: [] for name in names}
        for number in range(steps):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                start = clock()
                group = self.programs[name]()
                seconds[name].append(clock() - start)
                if group is not None:
                    groups[name].append(group)
        return {"seconds": seconds, "groups": groups}

    def release(self) -> dict[str, Any]:
        super().release()
        keras.backend.clear_session()
        return {}


def main() -> None:
    door, control = sys.argv[1:]
    tf.config.threading.set_intra_op_parallelism_threads(max(1, (os.cpu_count() or 1) // SIZE))
    worker = Worker({"ddl": Ddl, "mirrored": Mirrored}[door]())
    version = f"TensorFlow {tf.__version__}, Keras {keras.__version__}"
    about = {"rank": RANK, "size": SIZE, "host": socket.gethostname(), "version": version}
    run_commands(worker, control, about)


if __name__ == "__main__":
    main()
