# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402
"""Run by test_jax_stock on any number of ranks: jax's own collectives, after one line of ours."""

import logging
import logging.handlers
from typing import Any

import ddl_jax as ddl

log = logging.handlers.BufferingHandler(1000)
logging.getLogger("ddl_jax").addHandler(log)
logging.getLogger("ddl_jax").setLevel(logging.INFO)
ddl.initialize(timeout=60)
assert any("XLA does not support f16 and f8" in each.getMessage() for each in log.buffer)

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

rank, size = jax.process_index(), jax.process_count()
assert (rank, size) == (ddl.rank(), ddl.size()) and len(jax.devices()) == size
assert jax.config.jax_cpu_collectives_implementation == "mpi"
with open("/proc/self/maps") as maps:
    libraries = {line.split()[-1] for line in maps if "libddl" in line and ".so" in line}
assert len(libraries) == 3 and any("libddl_jax_mpi" in each for each in libraries), libraries
mesh = jax.make_mesh((size,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
checked = 0
PARTS = P("d")


def same(got: Any, expected: Any, what: str) -> None:
    """Compare this process's part of a global array with the same part of the expected array."""
    global checked
    for shard in got.addressable_shards:
        np.testing.assert_allclose(
            np.asarray(shard.data, np.float64), expected[shard.index], rtol=1e-6, err_msg=what
        )
    assert got.shape == expected.shape, what
    checked += 1


def spread(array: np.ndarray, spec: Any = PARTS) -> Any:
    """Return a global array, of which each process holds its part."""
    sharding = NamedSharding(mesh, spec)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def mapped(function: Any, out: Any = PARTS) -> Any:
    return jax.jit(
        jax.shard_map(function, mesh=mesh, in_specs=P("d"), out_specs=out, check_vma=False)
    )


whole = np.arange(4.0 * size * size, dtype=np.float32).reshape(2 * size, 2 * size) + 1
blocks = whole.reshape(size, 2, 2 * size)
x = spread(whole)

same(mapped(lambda v: lax.psum(v, "d"), P())(x), blocks.sum(0), "psum")
same(mapped(lambda v: lax.pmean(v, "d"), P())(x), blocks.mean(0), "pmean")
same(mapped(lambda v: lax.pmax(v, "d"), P())(x), blocks.max(0), "pmax")
same(mapped(lambda v: lax.pmin(v, "d"), P())(x), blocks.min(0), "pmin")
same(mapped(lambda v: lax.all_gather(v, "d", tiled=True), P())(x), whole, "all_gather")
scattered = mapped(lambda v: lax.psum_scatter(v, "d", scatter_dimension=1, tiled=True))
same(scattered(x), np.concatenate(np.split(blocks.sum(0), size, 1)), "psum_scatter")
turned = mapped(lambda v: lax.all_to_all(v, "d", split_axis=1, concat_axis=0, tiled=True))
exchanged = np.concatenate(
    [np.concatenate(np.split(whole, size, 1)[r : r + 1]) for r in range(size)]
)
same(turned(x), exchanged, "all_to_all")
ring = [(r, (r + 1) % size) for r in range(size)]
shifted = mapped(lambda v: lax.ppermute(v, "d", ring))
same(shifted(x), np.roll(blocks, 1, axis=0).reshape(whole.shape), "ppermute")
for dtype in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "bfloat16", "complex64"):
    ones = spread(np.ones((size, 3), jnp.dtype(dtype)))
    got = mapped(lambda v: lax.psum(v, "d"), P())(ones)
    assert got.dtype == dtype and np.all(np.asarray(got.addressable_data(0)) == size), dtype
    checked += 1

for dtype in ("float16", "float8_e4m3fn"):  # XLA raises an error for these
    halves = spread(np.ones((size, 3), jnp.dtype(dtype)))
    for function in (lambda v: lax.psum(v, "d"), lambda v: lax.all_gather(v, "d")):
        try:
            mapped(function, P())(halves).block_until_ready()
        except jax.errors.JaxRuntimeError as error:
            assert "f16" in str(error), error
        else:
            raise AssertionError(dtype)
    same(shifted(halves), np.ones((size, 3)), dtype)  # these only move data

# ---- sharded jit ----

replicated, sharded = NamedSharding(mesh, P()), NamedSharding(mesh, P("d"))
same(jax.jit(lambda a: a.sum(0), out_shardings=replicated)(x), whole.sum(0), "sum, replicated")
same(jax.jit(lambda a: a.sum(0), out_shardings=sharded)(x), whole.sum(0), "sum, sharded")
same(jax.jit(lambda a: a @ a.T, out_shardings=sharded)(x), whole @ whole.T, "matmul")
same(jax.jit(lambda a: a * 2, out_shardings=replicated)(x), whole * 2, "gathered")
same(jax.jit(lambda a: a.T + 0, out_shardings=sharded)(x), whole.T, "transposed")
weights = spread(np.ones((2 * size, 3), np.float32), P())
gradient = jax.jit(jax.grad(lambda w, a: (a @ w).sum()), out_shardings=replicated)(weights, x)
same(gradient, np.tile(whole.sum(0)[:, None], (1, 3)), "gradient")
loop = mapped(lambda v: lax.fori_loop(0, 20, lambda i, u: lax.pmean(u, "d"), v), P())
same(loop(x), blocks.mean(0), "loop")
large = spread(np.ones((size, 1 << 18), np.float32))
same(mapped(lambda v: lax.psum(v, "d"), P())(large), np.full((1, 1 << 18), size), "large")

# ---- parts of the world: a mesh of two dimensions ----

if size == 4:
    grid = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    numbers = np.arange(4.0, dtype=np.float32).reshape(2, 2)
    two = jax.make_array_from_callback(
        (2, 2), NamedSharding(grid, P("a", "b")), lambda index: numbers[index]
    )
    for axis, kept in (("a", P(None, "b")), ("b", P("a", None))):
        rows = jax.jit(
            jax.shard_map(
                lambda v, axis=axis: lax.psum(v, axis),
                mesh=grid,
                in_specs=P("a", "b"),
                out_specs=kept,
                check_vma=False,
            )
        )(two)
        same(rows, numbers.sum("ab".index(axis), keepdims=True), f"psum over {axis}")

# ---- jax's functions for several hosts ----

assert multihost_utils.broadcast_one_to_all(np.float32(rank + 7)) == 7
gathered = multihost_utils.process_allgather(np.array([rank], np.int32))
assert gathered.reshape(-1).tolist() == list(range(size))
multihost_utils.sync_global_devices("here")
multihost_utils.assert_equal(np.arange(3), "these are equal")

# ---- ddl_jax's operations together with jax's, inside shard_map too, in the program's order ----

assert ddl.allreduce(jnp.float32(rank)) == size * (size - 1) / 2


def both(v: Any) -> Any:
    a = ddl.allreduce(v[0, :3], "max")
    b = lax.psum(v, "d").sum()
    return (ddl.allreduce(v).sum() + a.sum() + b).reshape(1)


expected = 2 * whole.sum() + blocks[-1, 0, :3].sum()
same(mapped(both)(x), np.full(size, expected), "both")
halved = mapped(lambda v: jax.grad(lambda u: (ddl.allreduce(u) ** 2).sum())(v))
same(halved(x), np.tile(2 * size * blocks.sum(0), (size, 1)), "gradient inside shard_map")
print(f"checked {checked}", flush=True)
ddl.shutdown()
