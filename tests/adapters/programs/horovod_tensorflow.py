# SPDX-License-Identifier: Apache-2.0
"""Horovod's operations on TensorFlow over libddl: the values that its documentation promises, on
any number of ranks, eagerly and in tf.function. Prints "done NAME" for each part."""

import json
import threading
from pathlib import Path

import numpy as np
import tensorflow as tf
from checks import refused
from horovod_recorded import Recorded

import ddl_horovod.tensorflow

hvd = Recorded(ddl_horovod.tensorflow)
hvd.init()
hvd.init()  # has no effect
RANK, SIZE = hvd.rank(), hvd.size()
TOTAL = SIZE * (SIZE + 1) / 2  # the sum of rank + 1
EVENS = hvd.add_process_set(range(0, SIZE, 2))
MEMBERS = list(range(0, SIZE, 2))


def same(tensor, expected):
    np.testing.assert_array_equal(np.asarray(tensor, np.float64), np.asarray(expected, np.float64))


def own(rows=4, dtype=tf.float32):
    return tf.cast(tf.fill([rows], RANK + 1), dtype)


def both(function):
    """Call eagerly, and in a graph that runs twice."""
    function()
    graph = tf.function(function)
    graph()
    graph()


def check(tensor, expected):
    tf.numpy_function(lambda value: same(value, expected), [tensor], [])


def gradient(function, tensor):
    """Return the gradient of the function's sum, weighted by rank + 1."""
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        result = function(tensor)
    weights = tf.fill(tf.shape(result), tf.cast(RANK + 1, result.dtype))
    return tape.gradient(result, tensor, weights)


def world():
    assert hvd.check_extension("x", "X", "x.py", "lib") is None
    assert not hvd.gpu_available("x", verbose=True)
    assert hvd.split_list([1, 2, 3, 4, 5], 2) == [[1, 2, 3], [4, 5]]
    assert (hvd.local_rank(), hvd.local_size()) == (RANK, SIZE)
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    assert hvd.is_homogeneous() and hvd.is_initialized()
    assert hvd.gloo_built() and hvd.gloo_enabled()
    for name in ("mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built", "ddl_built"):
        assert not getattr(hvd, name)()
    assert not (hvd.ccl_built() or hvd.cuda_built() or hvd.rocm_built())
    assert hvd.get_process_set_ids_and_ranks() == {0: list(range(SIZE)), 1: MEMBERS}
    both(lambda: check(hvd.rank_op(), RANK))
    both(lambda: check(hvd.size_op(), SIZE))
    both(lambda: check(hvd.size_op(process_set_id=1), len(MEMBERS)))
    both(lambda: check(hvd.local_rank_op(), RANK))
    both(lambda: check(hvd.local_size_op(), SIZE))
    both(lambda: check(hvd.process_set_included_op(1), RANK in MEMBERS))
    refused(ValueError, "process_set_id is 9", lambda: hvd.size_op(9))
    assert hvd.check_num_rank_power_of_2(4) and not hvd.check_num_rank_power_of_2(3)
    assert hvd.handle_average_backwards_compatibility(None, False) is hvd.Sum
    assert hvd.handle_average_backwards_compatibility(None, None) is hvd.Average
    variables = [tf.Variable(1.0), [tf.Variable(2.0)]]
    back = hvd.refs_to_vars(hvd.vars_to_refs(variables))
    assert back[0] is variables[0] and back[1][0] is variables[1][0]


def allreduce():
    for dtype in (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64, tf.uint8):
        both(lambda dtype=dtype: check(hvd.allreduce(own(4, dtype), op=hvd.Sum), [TOTAL] * 4))
    both(lambda: check(hvd.allreduce(own() * SIZE), [TOTAL] * 4))  # the average
    both(lambda: check(hvd.allreduce(own(), average=False), [TOTAL] * 4))
    both(lambda: check(hvd.allreduce(own(), op=hvd.Min), [1] * 4))
    both(lambda: check(hvd.allreduce(own(), op=hvd.Max), [SIZE] * 4))
    both(lambda: check(hvd.allreduce(own(), op=hvd.Product), [2 if SIZE == 2 else 6] * 4))
    scales = {"prescale_factor": 0.5, "postscale_factor": 4.0}
    both(lambda: check(hvd.allreduce(own(), op=hvd.Sum, **scales), [2 * TOTAL] * 4))
    half = hvd.allreduce(own(), op=hvd.Sum, compression=hvd.Compression.fp16)
    assert half.dtype == tf.float32
    same(half, [TOTAL] * 4)
    same(hvd.allreduce(tf.Variable(own()), op=hvd.Sum), [TOTAL] * 4)
    pair = [own(), own(2, tf.float64)]
    both(lambda: check(hvd.grouped_allreduce(pair, op=hvd.Sum)[1], [TOTAL] * 2))
    assert hvd.grouped_allreduce([]) == []
    both(lambda: check(gradient(lambda t: hvd.allreduce(t, op=hvd.Sum), own()), [TOTAL] * 4))
    both(lambda: check(gradient(lambda t: hvd.allreduce(t * SIZE), own()), [TOTAL] * 4))
    for dtype in (tf.float16, tf.bfloat16):  # the factor is outside of its range
        tiny = tf.fill([4], tf.cast(1 / 1024, dtype))
        for op, rows in ((hvd.allreduce, 4), (hvd.reducescatter, hvd.split_list([0] * 4, SIZE))):
            options = {"op": hvd.Sum, "postscale_factor": 2.0**17 / SIZE}
            expected = [128] * (rows if isinstance(rows, int) else len(rows[RANK]))
            both(lambda op=op, t=tiny, o=options, e=expected: check(op(t, **o), e))
        options = {"op": hvd.Sum, "prescale_factor": 2.0**-30 / SIZE, "postscale_factor": 2.0**30}
        compiled = tf.function(lambda t, o=options: hvd.allreduce(t, **o), jit_compile=True)
        back = gradient(lambda t, o=options: hvd.allreduce(t, **o), tiny)
        if dtype == tf.bfloat16:  # float16 cannot represent 2 ** -40
            same(compiled(tiny), tiny.numpy().astype(np.float64))
            assert np.isfinite(np.asarray(back, np.float64)).all()
    slices = tf.IndexedSlices(own(1)[:, None], tf.constant([RANK]), tf.constant([SIZE, 1]))
    summed = tf.convert_to_tensor(hvd.allreduce(slices, op=hvd.Sum))
    same(summed[:, 0], range(1, SIZE + 1))
    averaged = tf.convert_to_tensor(hvd.allreduce(slices))
    np.testing.assert_allclose(averaged[:, 0], np.arange(1, SIZE + 1) / SIZE)
    refused(NotImplementedError, "Min", lambda: hvd.allreduce(slices, op=hvd.Min))
    refused(ValueError, "pass op only", lambda: hvd.allreduce(own(), average=True, op=hvd.Sum))
    compiled = tf.function(lambda: hvd.allreduce(own(), op=hvd.Sum), jit_compile=True)
    same(compiled(), [TOTAL] * 4)
    compiled = tf.function(lambda: hvd.allreduce(own(), op=hvd.Max), jit_compile=True)
    refused(NotImplementedError, "jit_compile=False", compiled)


def allgather():
    expected = [float(rank + 1) for rank in range(SIZE) for _ in range(rank + 1)]
    both(lambda: check(hvd.allgather(own(RANK + 1)), expected))
    both(lambda: check(gradient(hvd.allgather, own(RANK + 1)), [TOTAL / SIZE] * (RANK + 1)))
    both(lambda: check(hvd.allgather(tf.constant(RANK)), range(SIZE)))
    both(lambda: check(hvd.allgather(tf.ones([RANK, 2])), np.ones([SIZE * (SIZE - 1) // 2, 2])))
    both(lambda: check(hvd.allgather(tf.constant([RANK == 0])), [True] + [False] * (SIZE - 1)))
    pair = hvd.grouped_allgather([own(RANK + 1), own(1)])
    same(pair[0], expected)
    same(pair[1], range(1, SIZE + 1))


def broadcast():
    both(lambda: check(hvd.broadcast(own(), SIZE - 1), [SIZE] * 4))
    weighted = [TOTAL / SIZE if RANK == 1 else 0] * 4
    both(lambda: check(gradient(lambda t: hvd.broadcast(t, 1), own()), weighted))
    refused(ValueError, "root_rank is 9; must be", lambda: hvd.broadcast(own(), 9))
    variables = [tf.Variable(own()), tf.Variable(RANK)]
    assert hvd.broadcast_(variables, 1)[0] is variables[0]
    same(variables[0], [2] * 4)
    same(variables[1], 1)
    for inplace in (False, True):
        variables = [tf.Variable(own()), tf.Variable(RANK), tf.Variable("text")]
        hvd.broadcast_variables(variables, 1, inplace=inplace)
        same(variables[0], [2] * 4)
        same(variables[1], 1)


def alltoall():
    tensor = tf.range(2 * SIZE) + 100 * RANK
    expected = [100 * r + 2 * RANK + i for r in range(SIZE) for i in (0, 1)]
    both(lambda: check(hvd.alltoall(tensor), expected))
    splits = list(range(1, SIZE + 1))  # rank r receives r + 1 rows from each rank

    def uneven():
        result, received = hvd.alltoall(own(sum(splits)), splits)
        check(received, [RANK + 1] * SIZE)
        check(result, [rank + 1 for rank in range(SIZE) for _ in range(RANK + 1)])
        back = gradient(lambda t: hvd.alltoall(t, tf.constant(splits))[0], own(sum(splits)))
        check(back, [rank + 1 for rank in range(SIZE) for _ in range(rank + 1)])

    both(uneven)
    refused(ValueError, "splits: [1] do not divide", lambda: hvd.alltoall(own(), [1]))
    refused(ValueError, "splits has the type float32", lambda: hvd.alltoall(own(), [1.9] * SIZE))


def reducescatter():
    tensor = tf.range(SIZE + 1.0)  # the first part has one more row
    mine = np.array([0.0, 1.0] if RANK == 0 else [RANK + 1.0])
    both(lambda: check(hvd.reducescatter(tensor, op=hvd.Sum), SIZE * mine))
    both(lambda: check(hvd.reducescatter(tensor), mine))
    ranks = np.array([1, *range(1, SIZE + 1)])
    both(lambda: check(gradient(hvd.reducescatter, tensor), ranks))
    summed = lambda t: hvd.reducescatter(t, op=hvd.Sum)  # noqa: E731
    both(lambda: check(gradient(summed, tensor), SIZE * ranks))  # like Horovod
    scaled = hvd.reducescatter(tensor, op=hvd.Sum, prescale_factor=2, postscale_factor=3)
    same(scaled, 6 * SIZE * mine)
    half = hvd.reducescatter(tensor, op=hvd.Sum, compression=hvd.Compression.fp16)
    same(half, SIZE * mine)
    pair = hvd.grouped_reducescatter([tensor, own(SIZE)], op=hvd.Sum)
    same(pair[0], SIZE * mine)
    same(pair[1], [TOTAL])
    refused(ValueError, "op is Min; must be", lambda: hvd.reducescatter(own(), op=hvd.Min))


def errors():
    call = lambda: hvd.allreduce(own(3 if RANK else 4), name="uneven")  # noqa: E731
    refused(RuntimeError, "call different operations: allreduce 'uneven'", call)
    call = lambda: hvd.allreduce(own(), op=hvd.Sum if RANK else hvd.Max)  # noqa: E731
    refused(RuntimeError, "different operations", call)
    refused(tf.errors.FailedPreconditionError, "different operations", call)
    in_graph = tf.function(lambda: hvd.broadcast(own(), min(RANK, 1)))
    refused(tf.errors.FailedPreconditionError, "different operations", in_graph)
    uneven = lambda: hvd.alltoall(tf.ones([SIZE + 1]))  # noqa: E731
    for call in (uneven, tf.function(uneven)):
        refused(tf.errors.InvalidArgumentError, "cannot be divided equally", call)
    same(hvd.allreduce(own(), op=hvd.Sum), [TOTAL] * 4)


def process_sets():
    assert EVENS.process_set_id == 1 and EVENS.included() == (RANK % 2 == 0)
    assert isinstance(EVENS, hvd.ProcessSet) and hvd.global_process_set.ranks == list(range(SIZE))
    total = float(sum(each + 1 for each in MEMBERS))
    if EVENS.included():
        assert (EVENS.rank(), EVENS.size()) == (RANK // 2, len(MEMBERS))
        options = {"process_set": EVENS}
        both(lambda: check(hvd.allreduce(own(), op=hvd.Sum, **options), [total] * 4))
        same(hvd.allgather(own(1), **options), [each + 1 for each in MEMBERS])
        same(hvd.broadcast(own(), MEMBERS[-1], **options), [MEMBERS[-1] + 1] * 4)
        same(hvd.reducescatter(own(len(MEMBERS)), op=hvd.Sum, **options), [total])
        same(hvd.alltoall(own(len(MEMBERS)), **options), [each + 1 for each in MEMBERS])
        assert hvd.allgather_object(RANK, **options) == MEMBERS
        assert hvd.broadcast_object(RANK, MEMBERS[-1], **options) == MEMBERS[-1]
    else:
        refused(
            ValueError, "not in the process set", lambda: hvd.allreduce(own(), process_set=EVENS)
        )
    weight = tf.Variable(1.0)
    with tf.GradientTape() as plain:
        loss = weight * (RANK + 1)
    found = hvd.DistributedGradientTape(plain, process_set=EVENS).gradient(loss, [weight])
    same(found, [total / len(MEMBERS) if EVENS.included() else RANK + 1])  # other ranks train alone
    refused(ValueError, "was already added", lambda: hvd.add_process_set(MEMBERS))
    assert hvd.remove_process_set(EVENS) and not hvd.remove_process_set(EVENS)


def objects():
    assert hvd.broadcast_object({"rank": RANK}, root_rank=1) == {"rank": 1}
    assert hvd.broadcast_object_fn(root_rank=1)([RANK]) == [1]
    assert hvd.allgather_object("x" * RANK) == ["x" * rank for rank in range(SIZE)]


def tape():
    layer, alone = tf.Variable([1.0, 2.0]), tf.Variable(3.0)
    table = tf.Variable(tf.ones([SIZE, 2]))
    sources = [layer, alone, table]

    def gradients(wrap, **options):
        with tf.GradientTape() as plain:
            looked_up = tf.gather(table, [RANK])
            loss = tf.reduce_sum(layer) * (RANK + 1) + alone * (RANK + 1) + tf.reduce_sum(looked_up)
        return wrap(plain, **options).gradient(loss, sources)

    for options in ({}, {"gradient_predivide_factor": 2.0}, {"groups": 2}):
        found = gradients(hvd.DistributedGradientTape, **options)
        np.testing.assert_allclose(found[0], [TOTAL / SIZE] * 2)
        np.testing.assert_allclose(found[1], TOTAL / SIZE)
        np.testing.assert_allclose(tf.convert_to_tensor(found[2]), np.ones([SIZE, 2]) / SIZE)
        assert isinstance(found[2], tf.IndexedSlices)
    options = {"op": hvd.Sum, "sparse_as_dense": True, "compression": hvd.Compression.fp16}
    found = tf.function(lambda: gradients(hvd.DistributedGradientTape, **options))()
    same(found[0], [TOTAL] * 2)
    same(found[2], np.ones([SIZE, 2]))
    with tf.GradientTape(persistent=True) as plain:
        loss = tf.reduce_sum(layer) * (RANK + 1) + alone * (RANK + 1)
    wrapped = hvd.DistributedGradientTape(plain)
    assert isinstance(wrapped, tf.GradientTape)
    wrapped.register_local_source(alone)
    same(wrapped.gradient(loss, [layer, alone])[1], np.float32(RANK + 1) / np.float32(SIZE))
    local, shared = wrapped.get_local_and_global_gradients(loss, [layer, alone])
    assert [each[0] is alone for each in local] == [True] and shared[0][0] is layer
    dense = tf.keras.layers.Dense(1)
    dense.build([None, 2])
    with tf.GradientTape() as plain:
        loss = tf.reduce_sum(dense(tf.ones([1, 2]))) * (RANK + 1) + alone * (RANK + 1)
    options = {"local_layers": dense, "scale_local_gradients": False}
    partial = hvd.PartialDistributedGradientTape(plain, **options)
    weights = [each.value for each in dense.trainable_weights]
    found = partial.gradient(loss, [*weights, alone])
    same(found[0], [[RANK + 1]] * 2)
    np.testing.assert_allclose(found[2], TOTAL / SIZE)
    refused(
        ValueError,
        "local_layers",
        lambda: hvd.PartialDistributedGradientTape(plain, local_layers=[3]),
    )
    bad = {"op": hvd.Sum, "gradient_predivide_factor": 2.0}
    refused(ValueError, "op is not Average", lambda: hvd.DistributedGradientTape(plain, **bad))


def sessions():
    """TensorFlow 1 programs."""
    refused(RuntimeError, "eager", lambda: hvd.broadcast_global_variables(0))
    with tf.Graph().as_default():
        variable = tf.compat.v1.get_variable("v", initializer=[float(RANK + 1)])
        loss = tf.reduce_sum(variable) * (RANK + 1)
        optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0))
        step = optimizer.minimize(loss)
        hook = hvd.BroadcastGlobalVariablesHook(1)
        with tf.compat.v1.train.MonitoredSession(hooks=[hook]) as session:
            same(session.run(variable), [2])
            session.run(step)
            np.testing.assert_allclose(session.run(variable), [2 - TOTAL / SIZE])
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("v", initializer=[float(RANK + 1)])
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(hvd.broadcast_global_variables(0))
        same(session.run(variable), [1])
        assert hvd.broadcast_object(RANK, 1, session) == 1
    for attempt in range(3):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            numbers = [tf.random.uniform([4000], name=f"n{n}") * 0 + n for n in range(8)]
            # Each rank builds the graph in its own order; names are not needed.
            order = np.random.default_rng([RANK, attempt]).permutation(8)
            sums = {n: hvd.allreduce(numbers[n], op=hvd.Sum) for n in order}
            backs = [tf.gradients(sums[n], numbers[n])[0] for n in range(8)]
            gathered = {n: hvd.allgather(numbers[n][:1], name=f"g{n}") for n in order}
            for n in range(8):
                same(session.run(sums)[n], [n * SIZE] * 4000)
            ran = session.run({"sums": sums, "backs": backs, "gathered": gathered})
            for n in range(8):
                same(ran["sums"][n], [n * SIZE] * 4000)
                same(ran["backs"][n], [SIZE] * 4000)
                same(ran["gathered"][n], [n] * SIZE)
            rows = tf.ones([3 + RANK])
            wrong = hvd.allreduce(rows, name="wrong")
            refused(
                tf.errors.FailedPreconditionError,
                "call different operations: allreduce '/allreduce_wrong'",
                lambda session=session, wrong=wrong: session.run(wrong),
            )
    with tf.Graph().as_default():
        shapes = [[4], [4], [4], [3, 2], [1], [4]]
        made = [
            tf.compat.v1.get_variable(f"v{n}", initializer=tf.fill(shape, RANK + n + 1.0))
            for n, shape in enumerate(shapes)
        ]
        hooks = [hvd.BroadcastGlobalVariablesHook(1)]
        with tf.compat.v1.train.MonitoredTrainingSession(hooks=hooks) as session:
            for n, (variable, shape) in enumerate(zip(made, shapes, strict=True)):
                same(session.run(variable), np.full(shape, n + 2))
    kind = tf.compat.v1.train.GradientDescentOptimizer
    refused(
        NotImplementedError,
        "except for optimizers of Keras",
        lambda: hvd.DistributedOptimizer(kind(1.0), backward_passes_per_step=2),
    )


def gradients_of_functions():
    twice = tf.function(lambda a, b: (hvd.allreduce(a, op=hvd.Sum), hvd.allreduce(b, op=hvd.Sum)))
    for _ in range(5):
        ends = [tf.Variable(own(3)), tf.Variable(own(3))]
        with tf.GradientTape() as plain:
            first, second = twice(*ends)
            loss = tf.reduce_sum(first) * (RANK + 1) + tf.reduce_sum(second) * (RANK + 10)
        found = plain.gradient(loss, ends)
        same(found[0], [TOTAL] * 3)
        same(found[1], [TOTAL + 9 * SIZE] * 3)


def functions_of_one_name():
    def make(factor):
        @tf.function
        def step(tensor):
            return hvd.allreduce(tensor * factor, op=hvd.Sum)

        return step

    steps = {factor: make(factor) for factor in (1.0, 10.0)}
    found = {factor: [step(own())] for factor, step in steps.items()}  # traced in one thread

    def use(factor):
        for _ in range(20):
            found[factor].append(steps[factor](own()))

    threads = [threading.Thread(target=use, args=[factor]) for factor in steps]
    for thread in threads if RANK else reversed(threads):
        thread.start()
    for thread in threads:
        thread.join()
    for factor, results in found.items():
        for result in results:
            same(result, [factor * TOTAL] * 4)


def batch_norm():
    layer = hvd.SyncBatchNormalization(momentum=0.0, epsilon=0.0)
    rows = tf.constant([[float(RANK)], [float(RANK + 1)]] + [[0.5]] * RANK)
    everything = hvd.allgather(rows).numpy()
    result = layer(rows, training=True)
    expected = (rows - everything.mean()) / everything.std()
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(layer.moving_mean, [everything.mean()], rtol=1e-6)
    refused(ValueError, "fused", lambda: hvd.SyncBatchNormalization(fused=True))


def join():
    for number in range(RANK + 1):
        takers = [rank for rank in range(SIZE) if rank >= number]
        same(hvd.allreduce(own(), op=hvd.Sum), [sum(rank + 1 for rank in takers)] * 4)
        same(hvd.allgather(own(1)), [rank + 1 for rank in takers])
    same(hvd.join(), SIZE - 1)
    same(hvd.allreduce(own(), op=hvd.Sum), [TOTAL] * 4)


def adasum():
    if SIZE == 2:
        same(hvd.allreduce(tf.eye(2)[RANK], op=hvd.Adasum), [1, 1])
        both(lambda: check(hvd.allreduce(tf.ones(2), op=hvd.Adasum), [1, 1]))
    else:
        refused(NotImplementedError, "power of two", lambda: hvd.allreduce(own(), op=hvd.Adasum))


def timeline():
    hvd.start_timeline("timeline.json")
    hvd.allreduce(own(), name="traced")
    hvd.stop_timeline()
    if RANK == 0:
        names = {event.get("name") for event in json.loads(Path("timeline.json").read_text())}
        assert {"NEGOTIATE_ALLREDUCE", "ALLREDUCE"} <= names
    refused(NotImplementedError, "elastic.Job", lambda: hvd.elastic.run)


for part in (
    *(world, allreduce, allgather, broadcast, alltoall, reducescatter, errors, process_sets),
    *(objects, tape, sessions, gradients_of_functions, functions_of_one_name, batch_norm),
    *(join, adasum, timeline),
):
    part()
    print("done", part.__name__, flush=True)
hvd.shutdown()
assert not hvd.is_initialized()
refused(ValueError, "not initialized", hvd.rank)
hvd.init()
same(hvd.allreduce(own(), op=hvd.Sum), [TOTAL] * 4)
hvd.shutdown()
print("used tensorflow", *hvd.used)
