# SPDX-License-Identifier: Apache-2.0
"""Run by test_contract on each rank: what every adapter does under the names that all share.

    python suite.py FRAMEWORK

Expected values come from NumPy; they are small integers and halves, which every type holds.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from shims import COMPLEX, FLOATS, NATIVE, Shim, find

import ddl_core
from ddl_core.errors import InvalidArgument, InvalidState

SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (0,), (3, 0, 2), (5,), (2, 3), (70_001,))
# These stand for all types in operations that only move data or that resemble another one, because
# compiling frameworks need some time for each type.
SOME = {"bool", "uint16", "bfloat16", "float8_e5m2", "complex128"}
TIME_LIMIT = 10.0  # seconds within which an error must be raised

checked = 0


class Ranks:
    """The inputs of all ranks, known to each rank."""

    def __init__(self, shim: Shim) -> None:
        self.shim, self.ddl = shim, shim.ddl
        self.rank, self.size = shim.ddl.rank(), shim.ddl.size()
        self.some = [dtype for dtype in shim.dtypes if dtype in SOME]

    def known(self, *dtypes: str) -> list[str]:
        return [dtype for dtype in dtypes if dtype in self.shim.dtypes]

    def everyones(self, shape: tuple[int, ...], dtype: str) -> list[np.ndarray]:
        """Return each rank's array. Every element is rank + 1; for bool, whether the rank is
        even."""
        if dtype == "bool":
            return [np.full(shape, of % 2 == 0, dtype) for of in range(self.size)]
        return [np.full(shape, of + 1, np.float32).astype(dtype) for of in range(self.size)]

    def rows(self, shape: tuple[int, ...], dtype: str) -> list[np.ndarray]:
        """Return each rank's array of size * shape[0] rows: block b of rank r is r + b; for bool,
        whether this is even."""
        each = []
        for of in range(self.size):
            blocks = np.repeat(np.arange(self.size, dtype=np.float32) + of, shape[0])
            whole = np.ones((self.size * shape[0], *shape[1:]), np.float32)
            whole *= blocks.reshape(-1, *([1] * (len(shape) - 1)))
            each.append((whole % 2 == 0) if dtype == "bool" else whole.astype(dtype))
        return each

    def same(self, got: Any, expected: np.ndarray, what: object) -> None:
        global checked
        value = self.shim.numpy(got)
        assert value.dtype == expected.dtype, f"{what}: dtype {value.dtype}, not {expected.dtype}"
        assert value.shape == expected.shape, f"{what}: shape {value.shape}, not {expected.shape}"
        assert value.tobytes() == expected.tobytes(), f"{what}: {value}, not {expected}"
        checked += 1


def refused(
    error: type[Exception], texts: list[str], function: Callable[..., Any], *arguments: Any
) -> None:
    """Check that the call raises `error` in time, with all of `texts` in its message."""
    global checked
    start = time.monotonic()
    try:
        function(*arguments)
    except error as raised:
        for text in texts:
            assert text in str(raised), f"{text!r} is not in: {raised}"
        assert time.monotonic() - start < TIME_LIMIT
        checked += 1
    else:
        raise AssertionError(f"{error.__name__} was not raised, which should have said {texts}")


def reduced(arrays: list[np.ndarray], op: str) -> np.ndarray:
    """Return the expected result of `allreduce`, computed by NumPy in a type without rounding."""
    dtype = arrays[0].dtype
    wide = dtype if dtype.name == "bool" or dtype.name in COMPLEX else np.dtype(np.float64)
    if dtype.name.startswith(("int", "uint")):
        wide = dtype
    stacked = np.stack([array.astype(wide) for array in arrays])
    if op == "average":
        total = stacked.sum(0, dtype=wide)
        if np.issubdtype(dtype, np.integer):
            return (total // len(arrays)).astype(dtype)
        return (total / len(arrays)).astype(dtype)
    functions = {
        "sum": np.add,
        "min": np.minimum,
        "max": np.maximum,
        "product": np.multiply,
        "bit_and": np.bitwise_and,
        "bit_or": np.bitwise_or,
        "bit_xor": np.bitwise_xor,
    }
    return np.asarray(functions[op].reduce(stacked, axis=0)).astype(dtype)


def ops_of(dtype: str) -> tuple[str, ...]:
    if dtype in COMPLEX:
        return ("sum", "average")
    plain = ("sum", "min", "max", "product")
    if dtype in FLOATS:
        return (*plain, "average")
    bits = ("bit_and", "bit_or", "bit_xor")
    return (*plain, *bits) if dtype == "bool" else (*plain, *bits, "average")


# ---- checks ----


def check_before_init(shim: Shim) -> None:
    ddl = shim.ddl
    assert not ddl.is_initialized()
    for name in ("rank", "size", "local_rank", "local_size", "barrier"):
        refused(InvalidState, ["init()"], getattr(ddl, name))
    refused(InvalidState, ["init()"], ddl.allreduce, shim.array(np.ones(1, np.float32)))
    ddl.shutdown()  # has no effect


def check_world(ranks: Ranks) -> None:
    ddl = ranks.ddl
    assert ddl.is_initialized()
    assert (ranks.rank, ranks.size) == (int(os.environ["DDL_RANK"]), int(os.environ["DDL_SIZE"]))
    assert (ddl.local_rank(), ddl.local_size()) == (ranks.rank, ranks.size)
    refused(InvalidState, [f"rank {ranks.rank} of {ranks.size}"], ddl.init)


def check_allreduce(ranks: Ranks) -> None:
    for dtype in ranks.shim.dtypes:
        for op in ops_of(dtype) if dtype in ("bool", "int32", "float32", "complex64") else ("sum",):
            arrays = ranks.everyones((2, 3), dtype)
            own = ranks.shim.array(arrays[ranks.rank])
            ranks.same(ranks.ddl.allreduce(own, op=op), reduced(arrays, op), (dtype, op))
            ranks.same(own, arrays[ranks.rank], "what was given")
    for shape in SHAPES:
        arrays = ranks.everyones(shape, "float32")
        own = ranks.shim.array(arrays[ranks.rank])
        ranks.same(ranks.ddl.allreduce(own), reduced(arrays, "sum"), shape)
    for dtype in ranks.known("float16", "bfloat16"):
        arrays = ranks.everyones((3,), dtype)
        own = ranks.shim.array(arrays[ranks.rank])
        ranks.same(ranks.ddl.allreduce(own, op="average"), reduced(arrays, "average"), dtype)


def check_grouped_allreduce(ranks: Ranks) -> None:
    members = [
        (shape, dtype) for shape in SHAPES for dtype in ranks.known("float32", "int32", "bfloat16")
    ]
    everyones = [ranks.everyones(shape, dtype) for shape, dtype in members]
    own = [ranks.shim.array(arrays[ranks.rank]) for arrays in everyones]
    for op in ("sum", "average", "max"):
        results = ranks.ddl.grouped_allreduce(own, op=op)
        assert len(results) == len(own)
        for result, arrays, member in zip(results, everyones, members, strict=True):
            ranks.same(result, reduced(arrays, op), ("grouped", member, op))
    for array, arrays in zip(own, everyones, strict=True):
        ranks.same(array, arrays[ranks.rank], "what was given")
    assert list(ranks.ddl.grouped_allreduce([])) == []


def check_allgather(ranks: Ranks) -> None:
    members = [(shape, "float32") for shape in SHAPES] + [((2, 3), d) for d in ranks.some]
    for shape, dtype in members:
        arrays = ranks.everyones(shape, dtype)
        expected = np.concatenate([array.reshape(shape or (1,)) for array in arrays])
        own = ranks.shim.array(arrays[ranks.rank])
        ranks.same(ranks.ddl.allgather(own), expected, ("allgather", shape, dtype))


def check_broadcast(ranks: Ranks) -> None:
    members = [(shape, "float32") for shape in SHAPES] + [((2, 3), d) for d in ranks.some]
    for shape, dtype in members:
        arrays = ranks.everyones(shape, dtype)
        own = ranks.shim.array(arrays[ranks.rank])
        for root in range(ranks.size):
            ranks.same(ranks.ddl.broadcast(own, root), arrays[root], ("broadcast", shape, dtype))
        ranks.same(own, arrays[ranks.rank], "what was given")


def check_reduce_scatter(ranks: Ranks) -> None:
    shapes = [(1,), (0, 2), (2, 3), (23_456,)]
    members = [(shape, "float32", "sum") for shape in shapes]
    members += [((2,), dtype, op) for dtype in ranks.some for op in ops_of(dtype)[:1]]
    members += [((2,), "int32", "max"), ((2,), "float32", "average")]
    for shape, dtype, op in members:
        arrays = ranks.rows(shape, dtype)
        own = ranks.shim.array(arrays[ranks.rank])
        part = slice(ranks.rank * shape[0], (ranks.rank + 1) * shape[0])
        got = ranks.ddl.reduce_scatter(own, op=op)
        ranks.same(got, reduced(arrays, op)[part], ("reduce_scatter", shape, dtype, op))


def check_alltoall(ranks: Ranks) -> None:
    members = [(shape, "float32") for shape in [(1,), (0, 2), (2, 3), (23_456,)]]
    for shape, dtype in members + [((2,), dtype) for dtype in ranks.some]:
        arrays = ranks.rows(shape, dtype)
        part = slice(ranks.rank * shape[0], (ranks.rank + 1) * shape[0])
        own = ranks.shim.array(arrays[ranks.rank])
        expected = np.concatenate([array[part] for array in arrays])
        ranks.same(ranks.ddl.alltoall(own), expected, ("alltoall", shape, dtype))


def check_barrier(ranks: Ranks) -> None:
    """The last rank arrives late, and no other rank leaves the barrier before."""
    has_come = Path("has come")
    if ranks.rank == ranks.size - 1:
        time.sleep(0.2)
        has_come.touch()
    ranks.ddl.barrier()
    assert has_come.exists()


def check_async(ranks: Ranks) -> None:
    """Several operations run at the same time, and are waited for in another order."""
    ddl, size = ranks.ddl, ranks.size
    if not hasattr(ddl, "allreduce_async"):
        return
    arrays, rows = ranks.everyones((1000,), "float32"), ranks.rows((2,), "float32")
    own, own_rows = ranks.shim.array(arrays[ranks.rank]), ranks.shim.array(rows[ranks.rank])
    part = slice(2 * ranks.rank, 2 * ranks.rank + 2)
    started = [
        (ddl.allreduce_async(own), reduced(arrays, "sum")),
        (ddl.allgather_async(own), np.concatenate(arrays)),
        (ddl.broadcast_async(own, size - 1), arrays[size - 1]),
        (ddl.reduce_scatter_async(own_rows), reduced(rows, "sum")[part]),
        (ddl.alltoall_async(own_rows), np.concatenate([array[part] for array in rows])),
    ]
    grouped, barrier = ddl.grouped_allreduce_async([own, own_rows]), ddl.barrier_async()
    assert barrier.wait() is None and barrier.done()
    for work, expected in reversed(started):
        ranks.same(work.wait(), expected, "async")
        ranks.same(work.wait(), expected, "async, again")
        assert work.done()
    first, second = grouped.wait()
    ranks.same(first, reduced(arrays, "sum"), "grouped async")
    ranks.same(second, reduced(rows, "sum"), "grouped async")


def check_ordered_sums(ranks: Ranks) -> None:
    """Ordered sums accept the framework's tensors, without copying them."""
    if sys.argv[1] not in NATIVE:
        return  # its arrays are NumPy's, or copied to these
    values = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    with ddl_core.Endpoint() as endpoint, endpoint.connect([endpoint.address], 0) as alone:
        order, result, array = alone.order([0, 0]), ranks.shim.writable(4, 5), np.empty_like(values)
        parts = [ranks.shim.array(values)]
        assert alone.allreduce_ordered(order, parts, result, op="average") is result
        assert np.array_equal(np.asarray(result), values / 2)
        alone.allreduce_ordered(order, parts, array)
        assert np.array_equal(array, values)


def check_broadcast_parameters(ranks: Ranks) -> None:
    shapes = {"weight": (4, 3), "bias": (4,), "steps": (), "large": (70_001,), "none": (0,)}
    for root in range(ranks.size):
        everyones = {name: ranks.everyones(shape, "float32") for name, shape in shapes.items()}
        everyones["steps"] = ranks.everyones((), "int32")
        own = {name: arrays[ranks.rank] for name, arrays in everyones.items()}
        result = ranks.shim.broadcast_parameters(own, root)
        for name, arrays in everyones.items():
            assert result[name].tobytes() == arrays[root].tobytes(), name


def check_refused_arguments(ranks: Ranks) -> None:
    """A wrong argument raises an error before anything is sent, and the world stays usable."""
    ddl, size = ranks.ddl, ranks.size
    ones = ranks.shim.array(np.ones(size + 1, np.float32))
    refused(
        InvalidArgument, ["op is 'mean'; must be one of sum, average"], ddl.allreduce, ones, "mean"
    )
    refused(InvalidArgument, ["op is 'mean'"], ddl.grouped_allreduce, [ones], "mean")
    refused(InvalidArgument, ["op is 'mean'"], ddl.reduce_scatter, ones, "mean")
    for root in (-1, size):
        refused(InvalidArgument, [f"root is {root}; must be"], ddl.broadcast, ones, root)
    for function in (ddl.reduce_scatter, ddl.alltoall):
        refused(InvalidArgument, [f"({size + 1},) is not a multiple of {size}"], function, ones)
        scalar = ranks.shim.array(np.ones((), np.float32))
        refused(InvalidArgument, ["() is not a multiple of"], function, scalar)
    expected = np.full(size + 1, size, np.float32)
    ranks.same(ddl.allreduce(ones), expected, "after what was refused")


def check_mismatch(ranks: Ranks) -> None:
    """All ranks get an error that names both calls. The world is then dead, and can be left and
    joined again."""
    shim, ddl = ranks.shim, ranks.ddl
    own = shim.array(np.ones(3 if ranks.rank else 4, np.float32))
    said = ["all-reduce(f32, 3, sum)", "all-reduce(f32, 4, sum)"]
    refused(shim.dead, said, lambda: shim.numpy(ddl.allreduce(own)))
    refused(shim.dead, said, lambda: shim.numpy(ddl.allgather(own)))
    refused(shim.dead, said, ddl.barrier)
    ddl.shutdown()
    assert not ddl.is_initialized()
    ddl.init()
    array = shim.array(np.ones(3, np.float32))
    ranks.same(ddl.allreduce(array), np.full(3, ranks.size, np.float32), "in the second world")


def check_dead_rank(ranks: Ranks) -> None:
    """The last rank dies, and the errors of the other ranks name it."""
    shim, victim = ranks.shim, ranks.size - 1
    ranks.ddl.barrier()
    if ranks.rank == victim:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    ones = shim.array(np.ones(1000, np.float32))
    refused(shim.dead, [f"rank {victim}"], lambda: shim.numpy(ranks.ddl.allreduce(ones)))
    refused(shim.dead, [f"rank {victim}"], ranks.ddl.barrier)


def main() -> int:
    shim = find(sys.argv[1])
    check_before_init(shim)
    shim.ddl.init()
    ranks = Ranks(shim)
    for check in (
        check_world,
        check_allreduce,
        check_grouped_allreduce,
        check_allgather,
        check_broadcast,
        check_reduce_scatter,
        check_alltoall,
        check_barrier,
        check_async,
        check_ordered_sums,
        check_broadcast_parameters,
        check_refused_arguments,
        check_mismatch,
        check_dead_rank,  # on the last rank
    ):
        if check.__name__ not in shim.lacks:
            check(ranks)
    for name, reason in shim.lacks.items():
        print(f"skipped {name}: {reason}", flush=True)
    shim.ddl.shutdown()
    print(f"checked {checked}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
