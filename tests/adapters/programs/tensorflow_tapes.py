# SPDX-License-Identifier: Apache-2.0
"""Run by test_tensorflow on three ranks: gradients with the tape inside and outside of a function,
and what only some ranks need of them: every rank takes part all the same. With the argument
"interpreted": where there is no compiler, so XLA can do none of it."""

import sys

import numpy as np
import tensorflow as tf

import ddl_tensorflow as ddl

native = "interpreted" not in sys.argv
tf.get_logger().setLevel("ERROR")  # TensorFlow warns of repeated tracing
ddl.init(timeout=20)
rank, size = ddl.rank(), ddl.size()
root = size - 1
total = size * (size + 1) / 2  # the sum of all ranks' weights
weight = rank + 1.0
parts = [0, *range(2, size + 1)]  # number of rows of each rank, one of them 0

WAYS = {
    "eager": lambda function: function,
    "graph": lambda function: tf.function(function, autograph=False),
    "jit": lambda function: tf.function(function, autograph=False, jit_compile=True),
}
if not native:
    del WAYS["jit"]

# For each name: the operation, the rows of its input, and the gradient in each row if the results
# are weighted.
OPERATIONS = {
    "allreduce": (ddl.allreduce, 2, total),
    "average": (lambda x: ddl.allreduce(x, "average"), 2, total / size),
    "scalar": (lambda x: ddl.allreduce(x[0]), 1, total),
    "grouped": (lambda x: ddl.grouped_allreduce([x, 2 * x])[0], 2, total),
    "broadcast": (lambda x: ddl.broadcast(x, root), 2, total if rank == root else 0.0),
    "allgather": (ddl.allgather, 2, total),
    "scalars": (lambda x: ddl.allgather(x[0]), 1, total),
    "rows": (lambda x: ddl.allgather(x, parts), parts[rank], total),
    "uneven": (ddl.allgather, parts[rank], total),
    "reduce_scatter": (ddl.reduce_scatter, size, np.arange(1.0, size + 1)),
    "average part": (
        lambda x: ddl.reduce_scatter(x, "average"),
        size,
        np.arange(1.0, size + 1) / size,
    ),
    "parts": (
        lambda x: ddl.reduce_scatter(x, rows=parts),
        sum(parts),
        np.repeat(np.arange(1.0, size + 1), parts),
    ),
    "alltoall": (ddl.alltoall, size, np.arange(1.0, size + 1)),
    "uneven exchange": (
        lambda x: ddl.alltoall(x, parts)[0],
        sum(parts),
        np.repeat(np.arange(1.0, size + 1), parts),
    ),
}


def check(what: str, found, expected) -> None:
    full = np.broadcast_to(np.asarray(expected, "f"), found.shape)
    np.testing.assert_allclose(found.numpy(), full, 1e-5, err_msg=what)


def check_tapes(way: str, compiled) -> None:
    """Compute gradients of each operation, and of a following operation that all ranks need. If the
    first ran on some ranks only, the second would be matched with it."""
    for name, (operation, rows, expected) in OPERATIONS.items():
        if name.startswith("uneven") and way == "jit":
            continue  # XLA must know the number of rows of the result
        x = tf.ones([rows])

        def loss(x, operation=operation):
            return tf.reduce_sum(operation(x)) * weight

        def gradient(x, loss=loss):
            with tf.GradientTape() as tape:
                tape.watch(x)
                value = loss(x)
            return tape.gradient(value, x)

        check(f"{way}, {name}, tape inside", compiled(gradient)(x), expected)
        function = compiled(loss)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            value = function(x)
        for _ in range(2):
            check(f"{way}, {name}, tape outside", tape.gradient(value, x), expected)
        check(f"{way}, {name}, what follows", ddl.allreduce(tf.ones(1)), size)


def check_unused(way: str, compiled) -> None:
    def two(x, y):
        return ddl.broadcast(x, root) * (0.0 if rank == 0 else weight), ddl.allreduce(y) * weight

    function = compiled(two)
    x, y = tf.ones(3), tf.ones(4)
    for of, expected in ((x, total - 1 if rank == root else 0.0), (y, total)):
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            values = function(x, y)
        check(f"{way}, one of two", tape.gradient(values, of), expected)
    # A tape outside of a function treats it as one operation, so all its gradients are computed.
    with tf.GradientTape() as tape:
        tape.watch([x, y])
        value = function(x, y)[1 if way == "eager" else rank % 2]
    tape.gradient(value, [x, y])

    def dropped(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = ddl.broadcast(x, root)
        gradient = tape.gradient(value, x)
        return gradient if rank == root else x

    found = compiled(dropped)(x)
    check(f"{way}, dropped", found, size if rank == root else 1.0)
    check(f"{way}, what follows", ddl.allreduce(tf.ones(1)), size)


def check_second(way: str, compiled) -> None:
    for name, operation, expected in (
        ("allreduce", ddl.allreduce, 2 * size * total),
        ("broadcast", lambda x: ddl.broadcast(x, root), 2 * total if rank == root else 0.0),
    ):

        def second(x, operation=operation):
            with tf.GradientTape() as outer:
                outer.watch(x)
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    value = tf.reduce_sum(operation(x) ** 2) * weight
                first = inner.gradient(value, x)
            return outer.gradient(first, x)

        check(f"{way}, second of {name}", compiled(second)(tf.ones(2)), expected)
        check(f"{way}, what follows", ddl.allreduce(tf.ones(1)), size)


for way, compiled in WAYS.items():
    check_tapes(way, compiled)
    check_unused(way, compiled)
    print("done", way, flush=True)
for way, compiled in WAYS.items():
    check_second(way, compiled)
print("done second", flush=True)
ddl.shutdown()
