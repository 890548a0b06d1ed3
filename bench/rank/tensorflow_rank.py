# SPDX-License-Identifier: Apache-2.0
"""One rank of bench/training_tensorflow.py: creates programs, runs them on command, and sleeps in
between.

    python tensorflow_rank.py BACKEND SOCKET

BACKEND is "ddl" or "mirrored" (tf.distribute.MultiWorkerMirroredStrategy). SOCKET is the path of
the scheduler's Unix socket. `Worker` and `Steps` have the commands.
"""

import os
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["NUMPY_MADVISE_HUGEPAGE"] = "0"  # small pages, as in TensorFlow's memory

import keras
import numpy as np
import tensorflow as tf
from command_loop import Program, Steps, run_commands

RANK, SIZE = int(os.environ["DDL_RANK"]), int(os.environ["DDL_SIZE"])
SETTLED = 1  # steps before the weights are compared; rounding errors grow with each step
CLASSES, IMAGES, PIXELS = 1000, 8, 64  # IMAGES per step on each rank
BYTES, WIDTH, LAYERS, HEADS = 256, 512, 6, 16
PIECES, CONTEXT = 4, 64  # PIECES of text per step on each rank
RATE, MOMENTUM = 1e-3, 0.9


class Ddl:
    """ddl_tensorflow in a custom training loop, as a graph and compiled by XLA."""

    def __init__(self) -> None:
        import ddl_tensorflow as ddl

        ddl.init()
        self.ddl = ddl

    def training(self, what: str) -> tuple[dict[str, Program], dict[str, Any]]:
        """Return the programs by name, and facts about them. "alone" and "alone, jit" do not
        communicate, except for a barrier at the end."""
        programs, info = {}, {}
        for name, jit in (("ddl", False), ("ddl, jit", True)):
            programs[name], model = self._training(what, jit, self.ddl.allreduce_gradients)
            for _ in range(SETTLED):
                programs[name]()
            info = describe(model)
            alone, _ = self._training(what, jit, lambda gradients: gradients)
            programs[name.replace("ddl", "alone")] = self._in_step(alone)
        variables = [tf.Variable(tf.ones_like(each)) for each in model.trainable_variables]
        programs["exchange"] = exchange(variables, self.ddl.grouped_allreduce)
        return programs, info

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
        """Return steps that compute the gradients of ResNet-50, wait for the other ranks, reduce
        the gradients as one group and apply them.

        They run as a graph, compiled, and bare (a group of ddl_core on arrays of the same sizes).
        "graph" and "bare" return the seconds of the reduction; "..., alone" do not reduce.
        """
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
        info = {"bytes": sum(array.nbytes for array in arrays), "tensors": len(arrays)}
        return programs, info


class Mirrored:
    """MultiWorkerMirroredStrategy with the same models and batches. TF_CONFIG lists the workers."""

    def __init__(self) -> None:
        self.strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def training(self, what: str) -> tuple[dict[str, Program], dict[str, Any]]:
        with self.strategy.scope():
            model, optimizer, x, y, loss = task(what)
            variables = [tf.Variable(tf.ones_like(each)) for each in model.trainable_variables]

        def of_replica() -> Any:
            with tf.GradientTape() as tape:
                result = (
                    loss(y, model(x, training=True)) / SIZE
                )  # gradients are summed over the ranks
            gradients = tape.gradient(result, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return result

        @tf.function(autograph=False)
        def step() -> Any:
            return self.strategy.run(of_replica)

        programs: dict[str, Program] = {"mirrored": lambda: step().numpy()}
        for _ in range(SETTLED):
            programs["mirrored"]()
        info = describe(model)

        def added(gradients: Sequence[Any]) -> Any:
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)

        def of_all(reduce: Program) -> Any:
            return self.strategy.run(reduce)

        programs["exchange"] = exchange(variables, added, of_all)
        return programs, info


def bare(arrays: Sequence[Any], barrier: Program, submit: Program) -> Program:
    def step() -> float:
        for array in arrays:
            np.multiply(array, 1.0, out=array)
        barrier()
        start = time.perf_counter()
        submit()
        return time.perf_counter() - start

    return step


def in_graph(variables: Sequence[tf.Variable], barrier: Any, reduce: Any) -> Program:
    factor = tf.Variable(1.0)  # a constant would be folded into the other factor

    @tf.function(autograph=False)
    def step() -> Any:
        gradients = [each * factor for each in variables]
        with tf.control_dependencies(gradients):
            passed = barrier()
        with tf.control_dependencies([passed]):
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


def compiled(variables: Sequence[tf.Variable], barrier: Program, reduce: Any) -> Program:
    @tf.function(jit_compile=True, autograph=False)
    def step() -> Any:
        gradients = [each * 1.0000001 for each in variables]
        reduced = reduce(gradients)
        for variable, gradient in zip(variables, reduced, strict=True):
            variable.assign_sub(RATE * gradient)
        # XLA drops gradients that are neither reduced nor returned.
        return gradients if reduced is gradients else [reduced[0][..., 0]]

    def both() -> None:
        barrier()
        step()[0].numpy()

    return both


def exchange(variables: Sequence[Any], reduce: Any, within: Any = lambda of: of()) -> Program:
    @tf.function(autograph=False)
    def step() -> Any:
        def reduced() -> Any:
            gradients = reduce([each * 1.0000001 for each in variables])
            return tf.add_n([tf.reshape(each, [-1])[0] for each in gradients])

        return within(reduced)

    return lambda: step().numpy()


# ---- the models ----


def task(what: str) -> tuple[keras.Model, Any, tf.Tensor, tf.Tensor, Any]:
    """Return a model with the same weights on all ranks, its optimizer, and this rank's constant
    batch."""
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
        weights=None, input_shape=(PIXELS, PIXELS, 3), classes=CLASSES, classifier_activation=None
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


# ---- the commands ----


class Worker(Steps):
    """The commands. Each has one answer.

    prepare    what: create the programs; the answer has facts about them
    alternate  steps: run steps of all programs in turns; the answer has the seconds of each step,
               and of the reduction in it if the program returns them
    """

    def prepare(self, what: str) -> dict[str, Any]:
        if what == "gradients":
            self.programs, info = self.backend.gradients()
        else:
            self.programs, info = self.backend.training(what)
        self.warm_up()
        return {**info, "programs": list(self.programs)}

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
    name, control = sys.argv[1:]
    tf.config.threading.set_intra_op_parallelism_threads(max(1, (os.cpu_count() or 1) // SIZE))
    worker = Worker({"ddl": Ddl, "mirrored": Mirrored}[name]())
    version = f"TensorFlow {tf.__version__}, Keras {keras.__version__}"
    about = {"rank": RANK, "size": SIZE, "host": socket.gethostname(), "version": version}
    run_commands(worker, control, about)


if __name__ == "__main__":
    main()
