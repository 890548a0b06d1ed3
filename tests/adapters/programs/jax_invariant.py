# SPDX-License-Identifier: Apache-2.0
"""Run by test_jax_operations on any number of ranks: the setting `invariant` of ddl_jax, and sums
over logical workers, compared with a tree of NumPy's additions."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from checks import operand, refused, tree

import ddl_jax as ddl
from ddl_core.errors import InvalidArgument, Unsupported

WORKERS, SLICES = 8, 8
SHAPE = (24, 5000)  # rows for each of 2, 3 and 4 ranks

ddl.init(timeout=60)
rank, size = ddl.rank(), ddl.size()
first, end = rank * WORKERS // size, (rank + 1) * WORKERS // size
rows = slice(rank * SHAPE[0] // size, (rank + 1) * SHAPE[0] // size)


def same(result: Any, expected: np.ndarray) -> None:
    got = np.asarray(result)
    assert got.shape == expected.shape and got.tobytes() == expected.tobytes()


def grouped(invariant: str) -> ddl.Communicator:
    return ddl.split(0, rank, invariant=invariant)


def failed(text: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    refused(
        *(jax.errors.JaxRuntimeError, text),
        lambda: jax.block_until_ready(call(*arguments, **options)),
    )


# ---- size: one array, or slices of it ----

by_size = grouped("size")
for kind in ("float32", "bfloat16"):
    every = [operand(r, SHAPE).astype(jnp.dtype(kind)) for r in range(size)]
    mine, total = every[rank], tree(every)
    same(ddl.allreduce(mine, comm=by_size), total)
    sliced = ddl.grouped_allreduce(list(mine.reshape(SLICES, -1)), comm=by_size)
    same(np.stack(sliced).reshape(SHAPE), total)
    slices = [ddl.allreduce(part, comm=by_size) for part in mine.reshape(SLICES, -1)]
    same(np.stack(slices).reshape(SHAPE), total)
    same(jax.jit(lambda x: ddl.reduce_scatter(x, comm=by_size))(mine), total[rows])
mine = operand(rank, SHAPE)
average = tree([operand(r, SHAPE) for r in range(size)]) / np.float32(size)
same(jax.jit(lambda x: ddl.allreduce(x, "average", comm=by_size))(mine), average)

# ---- workers: equal bits on any number of ranks, in a communicator with any setting ----

own = np.stack([operand(v, SHAPE) for v in range(first, end)])
total = tree([operand(v, SHAPE) for v in range(WORKERS)])
by_ranks = ddl.subset(range(size), invariant=f"ranks:{WORKERS}")
for comm in (None, by_size, by_ranks):
    same(ddl.allreduce_parts(own, WORKERS, comm=comm), total)
    same(ddl.allreduce_parts(own, WORKERS, "average", comm=comm), total / np.float32(WORKERS))
    same(ddl.reduce_scatter_parts(own, WORKERS, comm=comm), total[rows])
thirds = tree([operand(v, SHAPE) * np.float32(1 / 3) for v in range(WORKERS)])
for jit in (jax.jit, ddl.jit):  # a multiplication that XLA must not combine with the additions
    same(jit(lambda x: ddl.allreduce_parts(x * np.float32(1 / 3), WORKERS))(own), thirds)
    same(jit(lambda x: ddl.reduce_scatter_parts(x, WORKERS, comm=by_ranks))(own), total[rows])
columns = jax.vmap(lambda x: ddl.allreduce_parts(x, WORKERS), in_axes=2, out_axes=1)(own)
same(columns, total)
columns = jax.vmap(lambda x: ddl.reduce_scatter_parts(x, WORKERS), in_axes=2, out_axes=1)(own)
same(columns, total[rows])
every = [operand(v, SHAPE).astype(jnp.bfloat16).astype("f") for v in range(WORKERS)]
same(ddl.allreduce_parts(own.astype(jnp.bfloat16), WORKERS), tree(every).astype(jnp.bfloat16))
one = operand(0, SHAPE)[None] if rank == size - 1 else own[:0]  # one worker: on the last rank
same(ddl.allreduce_parts(one, 1), operand(0, SHAPE))
same(jax.vmap(lambda x: ddl.allreduce_parts(x, 1), in_axes=1)(one), operand(0, SHAPE))

# ---- errors ----

for error, text, operands, workers, op in (
    (InvalidArgument, f"rank {rank} has {end - first} workers", own[1:], WORKERS, "sum"),
    (InvalidArgument, "workers is 0; must be from 1 to 4096", own, 0, "sum"),
    (InvalidArgument, "has no dimension", jnp.ones(()), WORKERS, "sum"),
    (InvalidArgument, "op is 'mean'; must be one of sum", own, WORKERS, "mean"),
    (Unsupported, "op is max of float32; must be sum or average", own, WORKERS, "max"),
    (Unsupported, "op is sum of bool", own > 0, WORKERS, "sum"),
):
    refused(error, text, ddl.allreduce_parts, operands, workers, op)
uneven = jnp.ones((end - first, size + 1))
refused(InvalidArgument, "multiple of", ddl.reduce_scatter_parts, uneven, WORKERS)
gradient = jax.grad(lambda x: ddl.allreduce_parts(x, WORKERS).sum())
refused(NotImplementedError, "ddl_add", gradient, jnp.ones((end - first, 2)))
refused(InvalidArgument, "invariant is 'sizes'; must be", ddl.split, 0, invariant="sizes")

settings = ("size", "ranks:8") if rank else ("ranks:8", "size")
text = f"DDL_INVARIANT is {settings[0]} on rank {rank} "
refused(InvalidArgument, text, grouped, settings[0])
ddl.barrier()  # no rank leaves before the others have failed
ddl.shutdown()

ddl.init(timeout=60, invariant=f"ranks:{WORKERS}")
text = f"ranks:{WORKERS}, but the comm has {size} ranks"
failed(text, ddl.allreduce, mine)
ddl.shutdown()
ddl.init(timeout=60, invariant=f"ranks:{WORKERS}")
failed("allreduce_parts of ddl_torch and ddl_jax", ddl.allreduce, mine, comm=ddl.split(0, rank))
print("done")
