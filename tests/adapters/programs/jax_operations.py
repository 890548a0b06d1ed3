# SPDX-License-Identifier: Apache-2.0
"""Run by test_jax_operations on any number of ranks: each operation of ddl_jax, eagerly and under
every transformation of JAX. With the argument "sample" only some operations are transformed."""

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import ddl_jax as ddl
from ddl_core.errors import InvalidArgument, Unsupported

ddl.init(timeout=60)
rank, size = ddl.rank(), ddl.size()
total = size * (size + 1) / 2  # the sum of rank + 1
SAMPLE = "sample" in sys.argv
ON_GPU = jax.default_backend() == "gpu"  # on one rank there are no messages
left, right = (rank - 1) % size, (rank + 1) % size
checked = 0


def same(got: Any, expected: Any, what: str) -> None:
    global checked
    np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=1e-6, err_msg=what)
    checked += 1


def refused(error: type[Exception], text: str, function: Any, *arguments: Any) -> None:
    global checked
    try:
        jax.block_until_ready(function(*arguments))
    except error as raised:
        assert text in str(raised), raised
    else:
        raise AssertionError(f"{text!r} was not raised")
    checked += 1


# ---- every operation as a matrix, computed from all ranks' arrays, which each rank knows ----

Step = Callable[[Any], Any]
ROWS = 2 * size


def on_all(rows: int) -> np.ndarray:
    """All ranks' arrays: rank r's element i is 10 r + i + 1."""
    return np.add.outer(10.0 * np.arange(size), np.arange(rows) + 1.0)


OPERATIONS: dict[str, tuple[Step, Step]] = {  # ours, and NumPy's on all ranks' arrays
    "sum": (ddl.allreduce, lambda a: np.tile(a.sum(0), (size, 1))),
    "average": (lambda x: ddl.allreduce(x, "average"), lambda a: np.tile(a.mean(0), (size, 1))),
    "grouped": (
        lambda x: ddl.grouped_allreduce({"a": x, "b": 2 * x})["b"],
        lambda a: np.tile(2 * a.sum(0), (size, 1)),
    ),
    "broadcast": (lambda x: ddl.broadcast(x, size - 1), lambda a: np.tile(a[-1], (size, 1))),
    "allgather": (ddl.allgather, lambda a: np.tile(a.reshape(-1), (size, 1))),
    "reduce_scatter": (ddl.reduce_scatter, lambda a: a.sum(0).reshape(size, -1)),
    "reduce_scatter average": (
        lambda x: ddl.reduce_scatter(x, "average"),
        lambda a: a.mean(0).reshape(size, -1),
    ),
    "alltoall": (
        ddl.alltoall,
        lambda a: a.reshape(size, size, -1).swapaxes(0, 1).reshape(size, -1),
    ),
    "sendrecv": (lambda x: ddl.sendrecv(x, right, left), lambda a: np.roll(a, 1, axis=0)),
}
if ON_GPU:
    del OPERATIONS["sendrecv"]


def matrix(reference: Step) -> np.ndarray:
    """The linear map as an array [out rank, out element, in rank, in element]."""
    columns = [reference(unit.reshape(size, ROWS)) for unit in np.eye(size * ROWS)]
    return np.stack(columns, -1).reshape(size, -1, size, ROWS)


everyones = on_all(ROWS)
x = jnp.asarray(everyones[rank], jnp.float32)
for name, (step, reference) in OPERATIONS.items():
    expected = reference(everyones)[rank]
    same(step(x), expected, f"{name}, eager")
    same(jax.jit(step)(x), expected, f"{name}, jit")
    same(ddl.jit(step)(x), expected, f"{name}, ddl.jit")
    if SAMPLE and name not in ("grouped", "broadcast", "reduce_scatter average", "alltoall"):
        continue

    # Compare the derivatives with the transpose of the map over all ranks.
    whole = matrix(reference)
    tangents = np.sin(on_all(ROWS))
    tangent = jnp.asarray(tangents[rank], jnp.float32)
    moved = reference(tangents)[rank]
    value, change = jax.jvp(step, (x,), (tangent,))
    same(value, expected, f"{name}, jvp")
    np.testing.assert_allclose(change, moved, rtol=1e-4, atol=1e-5, err_msg=name)
    outputs = whole.shape[1]
    cotangents = np.cos(on_all(outputs))
    cotangent = jnp.asarray(cotangents[rank], jnp.float32)
    back = np.einsum("oe,oeif->if", cotangents, whole)[rank]
    _, pull = jax.vjp(step, x)
    np.testing.assert_allclose(pull(cotangent)[0], back, rtol=1e-4, atol=1e-5, err_msg=name)
    transposed = jax.linear_transpose(step, x)(cotangent)[0]
    np.testing.assert_allclose(transposed, back, rtol=1e-4, atol=1e-5, err_msg=name)
    gradient = jax.jit(jax.grad(lambda v, s=step, c=cotangent: (s(v) * c).sum()))(x)
    np.testing.assert_allclose(gradient, back, rtol=1e-4, atol=1e-5, err_msg=name)
    checked += 4

    # vmap over any axis. In this batch of two, the second array is ten times the first.
    for axis in (0, 1):
        batch = jnp.stack([x, 10 * x], axis)
        got = jax.vmap(step, in_axes=axis, out_axes=0)(batch)
        same(got, np.stack([expected, 10 * expected]), f"{name}, vmap {axis}")
    got = jax.jit(jax.vmap(jax.grad(lambda v, s=step, c=cotangent: (s(v) * c).sum())))(
        jnp.stack([x, 10 * x])
    )
    np.testing.assert_allclose(got, np.stack([back, back]), rtol=1e-4, atol=1e-5, err_msg=name)

    # Chained operations in a scan, with derivatives; many independent operations at once.
    def chained(v: Any, step: Step = step) -> Any:
        return step(v).sum() + step(2 * v).sum()

    same(jax.jit(chained)(x), 3 * expected.sum(), f"{name}, chained")

    def scanned(v: Any, step: Step = step) -> Any:
        return lax.scan(lambda c, k: (c + step(v * k).sum(), None), 0.0, jnp.arange(1.0, 4.0))[0]

    same(jax.jit(scanned)(x), 6 * expected.sum(), f"{name}, scan")
    back = np.einsum("oe,oeif->if", np.full((size, outputs), 6.0), whole)[rank]
    np.testing.assert_allclose(jax.grad(scanned)(x), back, rtol=1e-4, atol=1e-5, err_msg=name)
    checked += 2

# ---- scalars ----

same(ddl.allgather(jnp.float32(rank)), np.arange(size), "scalar, allgather")
same(jax.jit(ddl.allgather)(jnp.float32(rank)), np.arange(size), "scalar, allgather, jit")
same(jax.grad(lambda v: ddl.allgather(v).sum())(1.0), size, "scalar, allgather, grad")
SCALARS = {  # the result of rank + 1, and the derivative of the sum of all ranks' results
    "sum": (ddl.allreduce, total, size),
    "average": (lambda v: ddl.allreduce(v, "average"), total / size, 1),
    "grouped": (lambda v: ddl.grouped_allreduce([v, v * 2])[1], 2 * total, 2 * size),
    "broadcast": (lambda v: ddl.broadcast(v, 0), 1, size if rank == 0 else 0),
    "sendrecv": (lambda v: ddl.sendrecv(v, right, left), left + 1, 1),
}
for name, (step, expected, slope) in SCALARS.items():
    if (SAMPLE and name not in ("sum", "sendrecv")) or (ON_GPU and name == "sendrecv"):
        continue
    value = jnp.float32(rank + 1)
    for jit in (lambda f: f, jax.jit, ddl.jit):
        got = jit(step)(value)
        assert got.shape == ()
        same(got, expected, f"{name}, scalar")
    assert jax.jvp(step, (value,), (jnp.float32(1),))[0] == got
    same(jax.grad(step)(value), slope, f"{name}, scalar, grad")
    same(jax.linear_transpose(step, value)(value * 0 + 1)[0], slope, f"{name}, scalar, transpose")
    both = jax.vmap(step)(jnp.stack([value, 10 * value]))
    same(both, [expected, 10 * expected], f"{name}, scalar, vmap")
    sums = lax.scan(lambda c, k, f=step, v=value: (c + f(v * k), None), 0.0, jnp.arange(1.0, 4.0))
    same(sums[0], 6 * expected, f"{name}, scalar, scan")

# ---- reductions that have no derivative ----

whole_numbers = np.stack([np.arange(3) + 3 + 2 * r for r in range(size)])
REDUCTIONS = {
    "min": np.minimum.reduce,
    "max": np.maximum.reduce,
    "product": np.multiply.reduce,
    "bit_and": np.bitwise_and.reduce,
    "bit_or": np.bitwise_or.reduce,
    "bit_xor": np.bitwise_xor.reduce,
    "logical_and": lambda a: a.all(0),
    "logical_or": lambda a: a.any(0),
}
for op, reduction in REDUCTIONS.items():

    def reduced(v: Any, op: str = op) -> Any:
        return ddl.allreduce(v, op)

    def looped(v: Any, f: Step = reduced) -> Any:
        return lax.scan(lambda c, k: (f(v) + 0 * c, f(c)), v, jnp.arange(3))[0]

    numbers, expected = jnp.asarray(whole_numbers[rank]), reduction(whole_numbers)
    same(ddl.jit(reduced)(numbers), expected, op)
    if SAMPLE and op not in ("max", "logical_or"):
        continue
    for jit in (lambda f: f, jax.jit, ddl.jit):
        same(jit(reduced)(numbers), expected, op)
        same(jit(looped)(numbers), expected, f"{op}, scan")
    chain = reduction(np.stack([expected] * size))
    same(jax.jit(lambda v, f=reduced: f(f(v)))(numbers), chain, f"{op}, chained")
    got = jax.vmap(reduced, in_axes=1)(jnp.stack([numbers, 3 * numbers], 1))
    same(got, [expected, reduction(3 * whole_numbers)], f"{op}, vmap")

# ---- loops and branches ----

same(lax.fori_loop(0, 5, lambda i, v: ddl.allreduce(v) / size, x * 0 + 1), np.ones(ROWS), "fori")
same(
    jax.jit(
        lambda v: lax.while_loop(lambda c: ddl.allreduce(c[0]) < 10 * size, lambda c: c + 1, v)
    )(jnp.zeros(2)),
    [10, 10],
    "while, with an operation in its condition",
)
branch = jax.jit(lambda p, v: lax.cond(p, ddl.allreduce, lambda u: u * 0, v))
same(branch(True, x), everyones.sum(0), "cond")
same(branch(False, x), 0 * x, "cond")
remat = jax.grad(lambda v: jax.checkpoint(lambda u: jnp.sin(ddl.allreduce(u)))(v).sum())(x)
same(remat, size * np.cos(everyones.sum(0), dtype=np.float32), "checkpoint")
hessian = jax.hessian(lambda v: (ddl.allreduce(v) ** 2).sum())(x[:2])
same(hessian, 2 * size * np.eye(2) if size == 1 else hessian, "hessian")

# ---- independent operations that are ready at different times keep their order ----


def busy(v: Any, times: int) -> Any:
    m = jnp.ones((150, 150)) * v[0]
    for _ in range(times):
        m = m @ m * 1e-3
    return v + 0 * m[0, : v.shape[0]]


def many(v: Any) -> Any:
    results = []
    for i in range(30):
        part = v[: i + 1]
        own = busy(part, 4) if (i + rank) % 2 else part
        results.append(ddl.allreduce(own, "sum" if i % 3 else "max"))
    results.append(lax.fori_loop(0, 3, lambda i, u: ddl.allreduce(u) / size, jnp.ones(77)))
    results += [ddl.allreduce(v[: i + 1]) for i in range(30, 40)]
    return sum(r.sum() for r in results)


order = jax.jit(many)
expected = sum((1 if i % 3 == 0 else size) * (i + 1) for i in range(30)) + 77
expected += sum(size * (i + 1) for i in range(30, 40))
quick = ddl.jit(many)
ones = jnp.ones(64)
for result in [(order if i % 2 else quick)(ones) for i in range(10)]:  # mixed
    same(result, expected, "order")

# ---- arguments of programs ----


def formed(tree: Any, power: int, *, negative: bool = False, shift: Any = 0) -> Any:
    total = ddl.allreduce(tree["a"] ** power) + shift
    return {"sum": -total if negative else total, "none": tree["none"], "same": tree["a"]}


for jit in (jax.jit, ddl.jit):
    program = jit(formed, static_argnums=1, static_argnames="negative")
    for power in (1, 2):
        got = program({"a": jnp.full(2, 2.0), "none": None}, power, negative=True, shift=1.0)
        same(got["sum"], np.full(2, -(size * 2.0**power + 1)), "arguments")
        assert got["none"] is None and got["same"].shape == (2,)
assert ddl.jit(lambda v: v + 1)(1.0) == 2  # a program without operations
same(jax.vmap(ddl.jit(ddl.allreduce))(jnp.ones((2, 3))), np.full((2, 3), size), "jit in vmap")
for jit in (jax.jit, ddl.jit):
    ahead = jit(ddl.allreduce).lower(x).compile()
    for _ in range(3):  # the second call is quicker than the first
        same(ahead(x), everyones.sum(0), "compiled ahead of time")

device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
for jit in (jax.jit, ddl.jit):
    placed = jit(
        lambda u, v: (ddl.allreduce(u), v), in_shardings=device, out_shardings=(device,) * 2
    )
    same(placed(x, x)[0], everyones.sum(0), "shardings")

    @jit(static_argnums=1)
    def multiplied(v: Any, factor: int) -> Any:
        return ddl.allreduce(v) * factor

    same(multiplied(x, 3), 3 * everyones.sum(0), "decorator with arguments")
    assert multiplied.eval_shape(x, 3).shape == (ROWS,)
    assert "ddl_allreduce" in str(multiplied.trace(x, 3).jaxpr)
    multiplied.clear_cache()
    same(multiplied(x, 3), 3 * everyones.sum(0), "after clear_cache")

# ---- without jit ----

with jax.disable_jit():
    for name, (step, reference) in OPERATIONS.items():
        expected = reference(everyones)[rank]
        same(step(x), expected, f"{name}, disable_jit")
        same(jax.vmap(step)(jnp.stack([x])), expected[None], f"{name}, disable_jit, vmap")
        for jit in (jax.jit, ddl.jit):
            inner = jit(lambda v, step=step: step(v) * np.float32(v[0] / v[0]))  # of an array
            same(inner(x), expected, f"{name}, disable_jit, jit")
    looped = lax.fori_loop(0, 3, lambda i, v: ddl.allreduce(v) / size, jnp.ones(2))
    same(looped, np.ones(2), "fori, disable_jit")
    same(jax.grad(lambda v: ddl.allreduce(v).sum())(x), np.full(ROWS, size), "grad, disable_jit")
    ddl.barrier()

with jax.debug_nans(True):
    for jit in (jax.jit, ddl.jit):
        refused(FloatingPointError, "nan", jit(lambda v: jnp.log(ddl.allreduce(v))), -x)

# ---- with other effects ----

seen: list[float] = []


def watched(v: Any) -> Any:
    first = ddl.allreduce(v)
    jax.debug.callback(lambda u: seen.append(float(u)), first[0], ordered=True)
    return ddl.allreduce(first)


for jit in (jax.jit, ddl.jit):
    same(jit(watched)(jnp.ones(3)), np.full(3, size * size), "an ordered callback")
jax.effects_barrier()
assert seen == [size, size], seen

# ---- donation ----

large = jnp.full(300_000, rank + 1.0)
for jit in (jax.jit, ddl.jit):
    given = large + 0
    same(jit(ddl.allreduce, donate_argnums=0)(given), np.full(300_000, total), "donated")
    assert given.is_deleted()
    kept = jit(lambda v: (ddl.allreduce(v), v))(large)
    same(kept[0], np.full(300_000, total), "not donated")
    same(kept[1], np.full(300_000, rank + 1.0), "not donated")
    same(large, np.full(300_000, rank + 1.0), "not donated")
    inner = jit(lambda v: ddl.allreduce(v * 2) + v)(large)
    same(inner, np.full(300_000, 2 * total + rank + 1), "an intermediate")
huge = jnp.full(2_000_001, rank + 1.0)  # large enough for large pages
same(ddl.allreduce(huge), np.full(2_000_001, total), "large")
same(ddl.allgather(huge)[::2_000_001], np.arange(size) + 1, "large")
if not ON_GPU:
    text = jax.jit(ddl.allreduce, donate_argnums=0).lower(large).compile().as_text()
    assert "output_to_operand_aliasing" in text and " copy(" not in text, text
    text = jax.jit(ddl.allreduce).lower(large).compile().as_text()
    assert "output_to_operand_aliasing" not in text and " copy(" not in text, text

# ---- messages ----

if size > 1 and not ON_GPU:
    same(ddl.sendrecv(x, right, left, send_tag=3, recv_tag=3), everyones[left], "sendrecv")
    like = jax.ShapeDtypeStruct((left + 1,), jnp.float32)
    got = ddl.sendrecv(jnp.full(rank + 1, rank + 0.0), right, left, like=like)
    same(got, np.full(left + 1, left), "sendrecv of unequal shapes")

    def ping(v: Any) -> Any:
        if rank == 0:
            ddl.send(v, 1, tag=7)
            return ddl.recv(v, 1, tag=8)
        if rank == 1:
            got = ddl.recv(v, None, tag=7)
            ddl.send(got * 2, 0, tag=8)
            return got
        return v

    def pings(v: Any) -> Any:
        return lax.scan(lambda c, k: (c + ping(v * k), None), 0 * v, jnp.arange(1.0, 4.0))[0]

    answer = (everyones[0] * (2, 1)[rank]) if rank < 2 else everyones[rank]
    for jit in (lambda f: f, jax.jit, ddl.jit):
        same(jit(ping)(x), answer, "send, recv")
        same(jit(lambda v: ping(v) + ping(3 * v))(x), 4 * answer, "send, recv, chained")
        same(jit(pings)(x), 6 * answer, "send, recv, scan")
        same(jit(ping)(x[0]), answer[0], "send, recv, scalar")
    if rank == 0:  # a batch is one message
        jax.vmap(lambda v: ddl.send(v, 1, tag=9), in_axes=1)(jnp.stack([x, 10 * x], 1))
    if rank == 1:
        got = ddl.recv(jax.ShapeDtypeStruct((2, ROWS), jnp.float32), 0, tag=9)
        same(got, [everyones[0], 10 * everyones[0]], "send, vmap")
    batched = {"in_axes": 1, "out_axes": 1}
    for jit in (lambda f: f, jax.jit, ddl.jit):
        got = jit(jax.vmap(ping, **batched))(jnp.stack([x, 10 * x], 1))
        same(got, np.stack([answer, 10 * answer], 1), "send, recv, vmap")
        got = jit(jax.vmap(pings, **batched))(jnp.stack([x, 10 * x], 1))
        same(got, np.stack([6 * answer, 60 * answer], 1), "send, recv, scan, vmap")

    def found(v: Any) -> Any:
        if rank == 0:
            return ddl.send(v, 1) or (v, -1)
        return ddl.recv(v, None, with_source=True) if rank == 1 else (v, -1)

    got, source = jax.vmap(found, out_axes=(0, None))(jnp.stack([x, 10 * x]))
    same(got, np.stack([everyones[0 if rank == 1 else rank] * k for k in (1, 10)]), "source, vmap")
    same(source, 0 if rank == 1 else -1, "source, vmap")
    refused(NotImplementedError, "", lambda: jax.grad(lambda v: ddl.send(v, 0) or v.sum())(x))

# ---- barriers, between operations that would not match in another order ----


def fenced(v: Any) -> Any:
    first = ddl.allreduce(v)
    ddl.barrier()
    return first, ddl.allreduce(v[0])


def fenced_loop(v: Any) -> Any:
    return lax.scan(lambda c, _: (fenced(v)[1] + 0 * c, fenced(v)[0]), v[0], None, length=3)


for jit in (lambda f: f, jax.jit, ddl.jit):
    got = jit(fenced)(x)
    same(got[0], everyones.sum(0), "barrier")
    same(got[1], everyones[:, 0].sum(), "barrier")
    last, every = jit(fenced_loop)(x)
    same(last, everyones[:, 0].sum(), "barrier, scan")
    same(every, np.tile(everyones.sum(0), (3, 1)), "barrier, scan")
batch = jax.vmap(fenced)(jnp.stack([x, 10 * x]))[0]
same(batch, np.stack([everyones.sum(0), 10 * everyones.sum(0)]), "barrier, vmap")

# ---- errors ----

refused(
    NotImplementedError,
    "only for the ops sum and average",
    jax.grad(lambda v: ddl.allreduce(v, "max").sum()),
    x,
)
refused(InvalidArgument, "op is 'mean'", jax.jit(lambda v: ddl.allreduce(v, "mean")), x)
refused(InvalidArgument, f"dest is {size}; must be", ddl.send, x, size)
refused(InvalidArgument, "tag is -1", ddl.send, x, 0, -1)
refused(InvalidArgument, "dtype int4", ddl.allreduce, jnp.ones(2, jnp.int4))
refused(InvalidArgument, "like has type int32", lambda: ddl.sendrecv(x, 0, 0, like=np.int32(1)))
large_number = 2**40 + rank
refused(InvalidArgument, f"has the int64 {large_number}", ddl.broadcast, np.int64(large_number))
refused(InvalidArgument, "into JAX's uint32", ddl.allreduce, np.full(2, 2**32, np.uint64))
same(ddl.allreduce(np.full(2, rank + 1)), np.full(2, total), "integers of NumPy that fit")
for array, op in ((x * 1j, "max"), (x > 0, "average"), (x, "bit_or"), (x, "logical_and")):
    refused(Unsupported, f"{op} is not supported for {array.dtype}", ddl.allreduce, array, op)
same(ddl.allreduce(x), everyones.sum(0), "after what was refused")
with open("/proc/self/maps") as maps:
    libraries = {line.split()[-1] for line in maps if "libddl.so" in line}
assert len(libraries) == 1, libraries
print(f"checked {checked}", flush=True)
ddl.shutdown()
