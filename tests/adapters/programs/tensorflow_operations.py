# SPDX-License-Identifier: Apache-2.0
"""Run by test_tensorflow on any number of ranks: what ddl_tensorflow's operations give, in each of
TensorFlow's three ways of running them. With the argument "interpreted": where
there is no compiler, so XLA can do none of it; with "sample" with fewer types in graphs."""

import sys

import numpy as np
import tensorflow as tf
from checks import refused
from tensorflow.python.framework import kernels, op_def_registry

import ddl_core
import ddl_tensorflow as ddl
from ddl_core.errors import InvalidArgument, InvalidState, Unsupported


def same(result, expected) -> None:
    assert result.dtype == expected.dtype, (result.dtype, expected.dtype)
    if result.dtype.name == "bfloat16":
        result, expected = (each.astype(np.float32) for each in (result, expected))
    np.testing.assert_array_equal(result, expected)


native = "interpreted" not in sys.argv
tf.get_logger().setLevel("ERROR")  # TensorFlow warns of repeated tracing
refused(InvalidState, "call ddl_tensorflow.init() first", ddl.rank)
refused(InvalidArgument, "timeout is -1", ddl.init, timeout=-1)
ddl.shutdown()
ddl.init(timeout=60)
rank, size = ddl.rank(), ddl.size()
total = size * (size + 1) // 2
assert (ddl.local_rank(), ddl.local_size()) == (rank, size)
assert not ddl_core.is_initialized()  # the way in is closed again
refused(InvalidState, f"initialized already, as rank {rank} of {size}", ddl.init)

TYPES = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 half bfloat16 float32 float64"
TYPES += " complex64 complex128"


def every_type(kind: tf.DType):
    ones = tf.cast(tf.fill([2, 3], rank + 1), kind)
    scalar = tf.cast(rank + 1, kind)
    results = {
        "sum": ddl.allreduce(ones),
        "scalar": ddl.allreduce(scalar),
        "empty": ddl.allreduce(tf.zeros([0, 3], kind)),
        "broadcast": ddl.broadcast(ones, size - 1),
        "of scalars": ddl.allgather(scalar),
        "of nothing": ddl.allgather(tf.zeros([0, 3], kind)),
        "gathered": ddl.allgather(ones),
        "part": ddl.reduce_scatter(tf.concat([ones] * size, 0)),
        "all to all": ddl.alltoall(tf.concat([ones[:1]] * size, 0)),
    }
    if kind not in (tf.bool, tf.complex64, tf.complex128):
        results["max"] = ddl.allreduce(ones, "max")
        results["min"] = ddl.allreduce(scalar, "min")
    grouped = ddl.grouped_allreduce([ones, scalar, tf.zeros([0], kind), tf.ones(4)])
    results["first"], results["second"], results["nothing"], results["other"] = grouped
    return results


def expected(kind: tf.DType):
    dtype = kind.as_numpy_dtype
    every = np.arange(1, size + 1).astype(dtype)
    result = {
        "sum": np.full((2, 3), total),
        "scalar": np.array(total),
        "empty": np.zeros((0, 3)),
        "broadcast": np.full((2, 3), size),
        "of scalars": every,
        "of nothing": np.zeros((0, 3)),
        "gathered": np.repeat(every, 2)[:, None].repeat(3, 1),
        "part": np.full((2, 3), total),
        "all to all": every[:, None].repeat(3, 1),
        "max": np.full((2, 3), size),
        "min": np.array(1),
        "first": np.full((2, 3), total),
        "second": np.array(total),
        "nothing": np.zeros(0),
        "other": np.full(4, size),
    }
    return {
        name: value.astype(np.float32 if name == "other" else dtype)
        for name, value in result.items()
    }


def all_types(kinds):
    return {kind.name: every_type(kind) for kind in kinds}


kinds = [tf.dtypes.as_dtype(name) for name in TYPES.split()]
ways = {
    "eager": all_types,
    "graph": tf.function(all_types, autograph=False),
    "jit": tf.function(all_types, autograph=False, jit_compile=True),
}
if not native:
    refused(
        Unsupported,
        "allreduce: is not supported in a function with jit_compile",
        ways.pop("jit"),
        kinds,
    )
    with tf.Graph().as_default():
        refused(Unsupported, "no native part: no C++ compiler", ddl.barrier)
for way, function in ways.items():
    chosen = kinds
    if "sample" in sys.argv and way != "eager":  # these take longest to trace and to compile
        chosen = [tf.bool, tf.int32, tf.bfloat16, tf.float32]
    for name, results in function(chosen).items():
        right = expected(tf.dtypes.as_dtype(name))
        for operation, result in results.items():
            try:
                same(result.numpy(), right[operation])
            except AssertionError as error:
                raise AssertionError(f"{way}, {name}, {operation}: {error}") from error
    print("done", way, flush=True)

# Operations do not change their inputs, even if an input is used again or given twice.


def twice(x):
    y = x * 2
    first, second = ddl.grouped_allreduce([y, y])
    return [x, y, first, second + first, ddl.allreduce(y), ddl.broadcast(y, size - 1), y]


for way in (twice, tf.function(twice), tf.function(twice, jit_compile=native)):
    for number in (1, 2):
        own, all_ = number * (rank + 1.0), number * float(total)
        values = [each.numpy().tolist() for each in way(tf.fill([3], own))]
        right = [own, 2 * own, 2 * all_, 4 * all_, 2 * all_, 2.0 * number * size, 2 * own]
        assert values == [[each] * 3 for each in right], (values, right)

# ---- a different number of rows on each rank ----

own = tf.fill([rank + 1, 2], float(rank))
uneven = [of for of in range(size) for _ in range(of + 1)]
rows = [of + 1 for of in range(size)]
for function in (ddl.allgather, tf.function(ddl.allgather, autograph=False)):
    assert function(own).numpy()[:, 1].tolist() == uneven
    assert function(own, rows=rows).numpy()[:, 0].tolist() == uneven
assert ddl.allgather(tf.zeros([0 if rank else 3, 2])).shape == [3, 2]
to_each = tf.repeat(tf.range(size), tf.range(size))  # r rows of value r for each rank r
received, came = ddl.alltoall(to_each, list(range(size)))
assert received.numpy().tolist() == [rank] * (rank * size)
assert came.numpy().tolist() == [rank] * size
exchange = tf.function(ddl.alltoall, autograph=False)
received, came = exchange(to_each, tf.range(size))
assert received.numpy().tolist() == [rank] * (rank * size)
part = ddl.reduce_scatter(tf.ones([sum(rows), 2]), rows=rows)
assert part.shape == [rank + 1, 2] and part.numpy().max() == size

# ---- shapes that are known before a graph runs ----


@tf.function(input_signature=[tf.TensorSpec([2 * size, 3]), tf.TensorSpec([None, 3])])
def shapes(known, unknown):
    assert ddl.allreduce(known).shape == known.shape
    assert [each.shape for each in ddl.grouped_allreduce([known, unknown])] == [
        known.shape,
        unknown.shape,
    ]
    assert ddl.broadcast(known).shape == known.shape
    assert ddl.allgather(known).shape.as_list() == [None, 3]
    assert ddl.allgather(known, rows=[2 * size] * size).shape == [2 * size * size, 3]
    assert ddl.allgather(known[0, 0]).shape == [size]
    assert ddl.reduce_scatter(known).shape == [2, 3]
    assert ddl.reduce_scatter(unknown).shape.as_list() == [None, 3]
    assert ddl.alltoall(known).shape == known.shape
    assert ddl.alltoall(unknown).shape.as_list() == [None, 3]
    return ddl.alltoall(unknown)


shapes(tf.ones([2 * size, 3]), tf.ones([size, 3]))

# ---- errors when a graph is traced ----

text = tf.constant("text")
traced = tf.function(ddl.broadcast, autograph=False).get_concrete_function
for error in (Unsupported, TypeError):
    for strings in (text, "text", np.array(["text"])):
        refused(error, "of string, which allreduce by sum does not", ddl.allreduce, strings)
    refused(error, "tensor has elements of string, which broadcast does not", traced, text)
one = tf.ones(1)
refused(Unsupported, "of float32, which allreduce by bit_or", ddl.allreduce, one, "bit_or")
refused(Unsupported, "of bool, which allreduce by average", ddl.allreduce, [True], "average")
ragged, sparse = tf.ragged.constant([[1.0], [2.0, 3.0]]), tf.sparse.from_dense([[0.0, 1.0]])
for given, said in (
    (ragged, "is a RaggedTensor, but"),
    (sparse, "is a SparseTensor, but"),
    (None, "is a NoneType, which cannot be converted"),
    ([[1], [2, 3]], "is a list, which cannot be converted"),
    (object(), "is a object, which cannot be converted"),
):
    for function in (ddl.allgather, tf.function(ddl.alltoall, autograph=False)):
        refused(ValueError, f"tensor {said}", function, given)
    refused(ValueError, f"tensors[1] {said}", ddl.grouped_allreduce, [one, given])
refused(ValueError, "gradients[1] is a RaggedTensor", ddl.allreduce_gradients, [one, ragged])
refused(ValueError, "variables[0] is a ndarray", ddl.broadcast_parameters, [np.ones(1)])
assert ddl.allreduce([1, 2]).numpy().tolist() == [size, 2 * size]
assert ddl.allreduce(np.ones(2, "f")).numpy().tolist() == [size] * 2
refused(InvalidArgument, "op is None; must be one of", ddl.allreduce, one, None)
refused(InvalidArgument, "op is ['sum']; must be one of", ddl.allreduce, one, ["sum"])
refused(InvalidArgument, "root is 'all'; must be", ddl.broadcast, one, "all")
refused(InvalidArgument, "root is 0.5; must be", ddl.broadcast, one, 0.5)
refused(InvalidArgument, "name is 5; must be a str", ddl.allreduce, one, "sum", 5)
refused(InvalidArgument, "rows is 3; must have one number for each", ddl.allgather, one, 3)
refused(InvalidArgument, "rows is [1.5", ddl.allgather, one, [1.5] * size)
refused(InvalidArgument, "sent_rows is a tensor of float32", ddl.alltoall, one, tf.ones(size))
refused(InvalidArgument, f"rows is {rank + 1} for this rank", ddl.allgather, tf.ones(9), rows)
refused(InvalidArgument, "must have one number for each of", ddl.allgather, tf.ones(9), [9] * 9)
refused(InvalidArgument, "sent_rows has the sum", ddl.alltoall, tf.ones(5 * size), [1] * size)
if size > 1:
    traced = tf.function(ddl.alltoall, autograph=False).get_concrete_function
    refused(InvalidArgument, "is not a multiple of", traced, tf.ones(size + 1))
    unknown = tf.function(ddl.alltoall, input_signature=[tf.TensorSpec([None])], autograph=False)
    refused(tf.errors.InvalidArgumentError, "is not a multiple of", unknown, tf.ones(size + 1))

with tf.GradientTape() as tape:
    variable = tf.Variable(1.0)
    result = ddl.allreduce(variable, "max")
refused(LookupError, "op 'max' has no gradient", tape.gradient, result, variable)

# ---- on other devices: all arguments and results are in host memory ----


def check_kernels(operation: str) -> None:
    described = op_def_registry.get(operation)
    arrays = {each.name for each in (*described.input_arg, *described.output_arg)}
    found = kernels.get_registered_kernels_for_op(operation).kernel
    on_host = {kernel.device_type: set(kernel.host_memory_arg) for kernel in found}
    assert on_host["DEFAULT"] == arrays and on_host["CPU"] == set(), (operation, on_host)


if native:
    for kind in "Allreduce", "GroupedAllreduce", "Broadcast", "Allgather", "ReduceScatter":
        check_kernels(f"Ddl{kind}")
    check_kernels("DdlAlltoall")
    check_kernels("DdlBarrier")

# ---- leaving and joining again ----

ddl.barrier()
ddl.shutdown()
ddl.shutdown()
assert not ddl.is_initialized()
refused(InvalidState, "call ddl_tensorflow.init() first", ddl.size)
world = ddl_core.init()
ddl.init()
assert ddl_core.is_initialized()  # it was there
assert ddl.allreduce(tf.ones(1)).numpy() == size
ddl.shutdown()
ddl_core.finalize()

with open("/proc/self/maps") as maps:
    libraries = {line.split()[-1] for line in maps if "libddl.so" in line}
assert libraries == {ddl_core.library_path()}, libraries
print("done", file=sys.stdout, flush=True)
