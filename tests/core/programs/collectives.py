# SPDX-License-Identifier: Apache-2.0
"""One rank: every operation in every dtype and op against NumPy, and every way to call it.

The values are small integers, which every dtype holds exactly, and so are their sums and products:
results are compared bit by bit, but for averages of floats, which round.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import ddl_core

COUNTS = (0, 1, 7, 1000)
DTYPES = [
    np.dtype(name) for name in ("int8", "uint8", "int32", "int64", "float16", "float32", "float64")
] + [np.dtype(ml_dtypes.bfloat16)]
TOLERANCE = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "float64": 1e-14}
REDUCE: dict[str, Callable[[Any], Any]] = {
    "sum": lambda values: values.sum(0),
    "average": lambda values: values.sum(0) / len(values),
    "min": lambda values: values.min(0),
    "max": lambda values: values.max(0),
    "product": lambda values: values.prod(0),
}

comm = ddl_core.init(ddl_core.Config(operation_timeout=30))
checked = 0


def inputs(count: int, dtype: np.dtype[Any]) -> list[np.ndarray[Any, Any]]:
    """What each rank contributes, the same on all."""
    low = 1 if dtype.kind == "u" else -3
    draw = np.random.default_rng(count)
    return [draw.integers(low, 4, count).astype(dtype) for _ in range(comm.size)]


def reduced(contributions: list[np.ndarray[Any, Any]], op: str) -> np.ndarray[Any, Any]:
    dtype = contributions[0].dtype
    exact = REDUCE[op](np.stack([values.astype(np.float64) for values in contributions]))
    return (np.trunc(exact) if dtype.kind in "iu" else exact).astype(dtype)


def expect(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], what: object) -> None:
    global checked
    rounds = isinstance(what, tuple) and "average" in what
    if rounds and wanted.dtype.name in TOLERANCE:
        tolerance = TOLERANCE[wanted.dtype.name]
        good = np.allclose(
            found.astype(float), wanted.astype(float), rtol=tolerance, atol=tolerance
        )
    else:
        good = np.array_equal(found, wanted)
    if not good:
        sys.exit(f"{what}: found {found[:20]}, wanted {wanted[:20]}")
    checked += 1


def call(name: str, asynchronous: bool, *arguments: Any, **options: Any) -> Any:
    if not asynchronous:
        return getattr(comm, name)(*arguments, **options)
    work = getattr(comm, f"{name}_async")(*arguments, **options)
    result = work.wait()
    assert work.done()
    assert work.wait(0) is result
    return result


def check_reductions(count: int, dtype: np.dtype[Any], op: str, asynchronous: bool) -> None:
    what = (count, dtype.name, op, asynchronous)
    mine = inputs(count, dtype)[comm.rank]
    wanted = reduced(inputs(count, dtype), op)

    send, recv = mine.copy(), np.zeros_like(mine)
    assert call("allreduce", asynchronous, send, recv, op=op) is recv
    expect(recv, wanted, what)
    expect(send, mine, "allreduce wrote to send")
    assert call("allreduce", asynchronous, send, op=op) is send
    expect(send, wanted, what)

    blocks = inputs(count * comm.size, dtype)
    wanted = reduced(blocks, op).reshape(comm.size, count)[comm.rank]
    mine = blocks[comm.rank]
    send = mine.copy()
    assert call("reduce_scatter", asynchronous, send, recv, op=op) is recv
    expect(recv, wanted, what)
    expect(send, mine, "reduce_scatter wrote to send")
    assert call("reduce_scatter", asynchronous, send, op=op) is send
    expect(send.reshape(comm.size, count)[comm.rank], wanted, what)
    other = (comm.rank + 1) % comm.size
    if other != comm.rank:
        kept = mine.reshape(comm.size, count)[other]
        expect(send.reshape(comm.size, count)[other], kept, "reduce_scatter wrote elsewhere")


def check_moves(count: int, dtype: np.dtype[Any], asynchronous: bool) -> None:
    what = (count, dtype.name, asynchronous)
    everybody = inputs(count, dtype)
    wanted = np.concatenate(everybody)

    recv = np.zeros_like(wanted)
    assert call("allgather", asynchronous, everybody[comm.rank], recv) is recv
    expect(recv, wanted, what)
    recv = np.zeros((comm.size, count), dtype)
    recv[comm.rank] = everybody[comm.rank]
    call("allgather", asynchronous, recv)
    expect(recv.ravel(), wanted, what)

    for root in range(comm.size):
        array = everybody[comm.rank].copy()
        assert call("broadcast", asynchronous, array, root) is array
        expect(array, everybody[root], (*what, root))


for dtype in DTYPES:
    for count in COUNTS:
        for asynchronous in (False, True):
            check_moves(count, dtype, asynchronous)
            for op in REDUCE:
                check_reductions(count, dtype, op, asynchronous)

# A large one, and several at once, which end in order whatever one waits for first.
large = np.full(2**20 + 3, comm.rank + 1, np.float32)
comm.allreduce(large)
expect(large, np.full_like(large, comm.size * (comm.size + 1) / 2), "large")
arrays = [np.full(1000 * (i + 1), comm.rank + i, np.int64) for i in range(8)]
works = [comm.allreduce_async(array, op="max") for array in arrays]
works[-1].wait()
assert all(work.done() for work in works)
for i, array in enumerate(arrays):
    expect(array, np.full_like(array, comm.size - 1 + i), "overlapping")
comm.barrier()
comm.barrier_async().wait()
# In one piece, since not every launcher keeps lines whole.
sys.stdout.write(f"checked {checked} local {comm.local_rank} {comm.local_size}\n")
ddl_core.finalize()
