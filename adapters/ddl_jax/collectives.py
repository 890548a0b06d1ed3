# SPDX-License-Identifier: Apache-2.0
"""Operations on arrays of all ranks, under the names that all adapters of libddl share.

They work inside and outside jax.jit, grad, vmap, scan, while_loop, cond and shard_map, always in
the order of the program. `comm` restricts an operation to the ranks of `ddl_jax.split` or `subset`.
Ranks, roots and sizes then refer to these, and only they call it.

JAX runs operations asynchronously, so an error is raised by the next wait for a result, as
jax.errors.JaxRuntimeError with libddl's message. After such an error the world is dead; `shutdown`
leaves it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import Primitive
from jax.typing import ArrayLike

from ddl_core import adapter
from ddl_core.calls import dtypes
from ddl_core.calls.arguments import op_value
from ddl_core.calls.order import HALVES, contiguous
from ddl_core.errors import InvalidArgument, Unsupported
from ddl_jax import primitives
from ddl_jax.arrays import as_array
from ddl_jax.communicators import Communicator, members

if TYPE_CHECKING:
    from ddl_core.base.names import Op

Tree = TypeVar("Tree")

_COMBINE = {
    "sum": jnp.add,
    "product": jnp.multiply,
    "min": jnp.minimum,
    "max": jnp.maximum,
    "bit_and": jnp.bitwise_and,
    "bit_or": jnp.bitwise_or,
    "bit_xor": jnp.bitwise_xor,
    "logical_and": jnp.logical_and,
    "logical_or": jnp.logical_or,
}


def allreduce(
    array: ArrayLike,
    op: Op = "sum",
    *,
    comm: Communicator | None = None,
    transpose: str = "allreduce",
) -> Array:
    """Combine the ranks' arrays, element by element; all ranks get the same bits.

    array      of the same shape and type on all ranks
    op         "sum", "average", "min", "max", "product", "bit_and", "bit_or", "bit_xor",
               "logical_and" or "logical_or". Integers wrap; their average truncates
    transpose  for sum and average: "allreduce" if the gradient is the derivative of the sum of all
               ranks' losses; "identity" if all ranks compute the same loss, as in mpi4jax

    All ranks call it. If `array` is donated or no longer needed, the result uses its memory. Errors
    of the operation itself are raised later, see the module's docstring. Raises
        ddl_core.errors.InvalidArgument  for an unknown op, or a type that libddl does not support
        ddl_core.errors.Unsupported      for an op that the type does not support
        ddl_core.errors.InvalidState     before init
    """
    results: list[Any] = grouped_allreduce([array], op, comm=comm, transpose=transpose)
    result: Array = results[0]
    return result


def grouped_allreduce(
    arrays: Tree,
    op: Op = "sum",
    *,
    comm: Communicator | None = None,
    transpose: str = "allreduce",
) -> Tree:
    """Combine all arrays of a tree as `allreduce` does, in one operation. Small arrays are sent
    together.

    arrays: a pytree; its arrays may differ in shape and type. Returns a tree of the same structure.
    Gradients of integers (float0), which have no values, are returned unchanged.

    All ranks call it. Raises like `allreduce`.
    """
    leaves, tree = jax.tree.flatten(arrays)
    valued = [i for i, leaf in enumerate(leaves) if jnp.result_type(leaf) != jax.dtypes.float0]
    own = [_array(leaves[i]) for i in valued]
    number = _op(op, own)
    if transpose not in ("allreduce", "identity"):
        raise InvalidArgument(f'transpose: {transpose!r} must be "allreduce" or "identity"')
    which, _, ranks = members(comm)
    if not own:
        return arrays
    shared = int(transpose == "identity")
    results = primitives.allreduce_p.bind(*own, op=number, comm=which, size=ranks, shared=shared)
    for i, reduced in zip(valued, results, strict=True):
        leaves[i] = reduced
    result: Tree = jax.tree.unflatten(tree, leaves)
    return result


def broadcast(array: ArrayLike, root: int = 0, *, comm: Communicator | None = None) -> Array:
    """Return the root's array on all ranks.

    array  of the same shape and type on all ranks. Values matter on the root only
    root   the rank whose values all ranks get

    All ranks call it. Raises like `allreduce`, and InvalidArgument for a root that is not a rank.
    """
    root = adapter.check_rank("root", root, members(comm)[2])
    return _call(primitives.broadcast_p, comm, _array(array), root=root)


def allgather(array: ArrayLike, *, comm: Communicator | None = None) -> Array:
    """Concatenate the ranks' arrays along the first dimension.

    array: of the same shape and type on all ranks. Returns an array of shape (size *
    array.shape[0], ...), or of shape (size,) for a scalar.

    All ranks call it. Raises like `allreduce`.
    """
    own = _array(array)
    return _call(primitives.allgather_p, comm, own.reshape(own.shape or (1,)))


def reduce_scatter(array: ArrayLike, op: Op = "sum", *, comm: Communicator | None = None) -> Array:
    """Return this rank's part of the result of `allreduce`. The parts are equal, along the first
    dimension.

    array: of the same shape and type on all ranks; its first dimension is a multiple of size.

    All ranks call it. Raises like `allreduce`.
    """
    own = _array(array)
    number = _op(op, [own])
    adapter.equal_rows("array", own.shape, members(comm)[2])
    return _call(primitives.reduce_scatter_p, comm, own, op=number)


def allreduce_parts(
    operands: ArrayLike, workers: int, op: Op = "sum", *, comm: Communicator | None = None
) -> Array:
    """Sum the arrays of logical workers, with the same bits on any number of ranks.

    operands  the arrays of this rank's workers, stacked along the first dimension. Rank r of p has
              the workers from r * workers // p up to the next rank's first
    workers   the number of workers of all ranks
    op        "sum"; or "average", the sum divided by the number of workers

    All ranks call it, with equal shapes apart from the first dimension. It needs no setting of
    `init`, whose `invariant` may be "ranks:V". Half types are added in float32, and the result is
    rounded once. It works on CPUs only, and has no derivative. Raises like `allreduce`, and
    InvalidArgument if there is not one operand for each of this rank's workers.
    """
    own = _array(operands)
    return _sum_parts(primitives.allreduce_parts_p, own, own.shape[1:], workers, op, comm)


def reduce_scatter_parts(
    operands: ArrayLike, workers: int, op: Op = "sum", *, comm: Communicator | None = None
) -> Array:
    """Return this rank's part of the result of `allreduce_parts`. The parts are equal, along the
    first dimension.

    operands: as in `allreduce_parts`; the first dimension of each worker's array is a multiple of
    the number of ranks.

    All ranks call it. Raises like `allreduce_parts`.
    """
    own = _array(operands)
    rows = adapter.equal_rows("an operand", own.shape[1:], members(comm)[2])
    shape = (rows, *own.shape[2:])
    return _sum_parts(primitives.reduce_scatter_parts_p, own, shape, workers, op, comm)


def alltoall(array: ArrayLike, *, comm: Communicator | None = None) -> Array:
    """Send each rank its part of `array`. Return the received parts, concatenated in the order of
    ranks. The parts are equal, along the first dimension.

    array: of the same shape and type on all ranks; its first dimension is a multiple of size.

    All ranks call it. Raises like `allreduce`.
    """
    own = _array(array)
    adapter.equal_rows("array", own.shape, members(comm)[2])
    return _call(primitives.alltoall_p, comm, own)


def scan(array: ArrayLike, op: str = "sum", *, comm: Communicator | None = None) -> Array:
    """Combine the arrays of all ranks up to and including this rank, in the order of ranks.

    Rank 0 gets its own array, and the last rank the result of `allreduce`, except for rounding.
    Gathers all ranks' arrays. All ranks call it. It has a derivative if its operations have one.
    Raises like `allreduce`, and InvalidArgument for "average".
    """
    own = _array(array)
    _op(op, [own])
    if op not in _COMBINE:
        raise InvalidArgument(f"op: {op!r} must be one of {', '.join(_COMBINE)}")
    gathered = allgather(own[None], comm=comm)
    result = gathered[0]
    for number in range(1, members(comm)[1] + 1):
        result = _COMBINE[op](result, gathered[number])
    return result.astype(own.dtype)


def barrier(*, comm: Communicator | None = None) -> None:
    """Wait until all ranks have called this. In a traced program, later operations run after every
    rank has reached it."""
    done = _call(primitives.barrier_p, comm)
    if not isinstance(done, jax.core.Tracer):
        done.block_until_ready()


def send(array: ArrayLike, dest: int, tag: int = 0, *, comm: Communicator | None = None) -> None:
    """Send an array to rank `dest`, which calls `recv` with the same tag, shape and type. Tags are
    0 or more. `send` has no derivative; `sendrecv` has one. Raises like `broadcast`."""
    which, _, size = members(comm)
    where = {"dest": adapter.check_rank("dest", dest, size), "send_tag": _tag("tag", tag)}
    primitives.send_p.bind(_array(array), **where, comm=which, size=size)


def recv(
    like: Any,
    source: int | None,
    tag: int = 0,
    *,
    comm: Communicator | None = None,
    with_source: bool = False,
) -> Any:
    """Return the oldest message with this tag from rank `source`, or from any rank if it is None.

    like         an array, or jax.ShapeDtypeStruct, of the message's shape and type; its values do
                 not matter. Under vmap, a message has the batch of this array, which must be the
                 batch of the array of `send`
    with_source  return the array and the sender's rank, a number of int32

    Raises like `broadcast`.
    """
    shape, dtype = _form(like)
    which, _, size = members(comm)
    where = {"source": _source(source, size), "recv_tag": _tag("tag", tag)}
    form = {"shape": shape, "dtype": dtype, "tells": int(with_source)}
    traced = [jax.lax.stop_gradient(like)] if isinstance(like, jax.core.Tracer) else []
    results = primitives.recv_p.bind(*traced, **form, **where, comm=which, size=size)
    return tuple(results) if with_source else results[0]


def sendrecv(
    array: ArrayLike,
    dest: int,
    source: int | None,
    *,
    send_tag: int = 0,
    recv_tag: int = 0,
    like: Any = None,
    comm: Communicator | None = None,
) -> Array:
    """Send an array to rank `dest`, and at the same time receive one from rank `source`, or from
    any rank if `source` is None.

    like  an array, or jax.ShapeDtypeStruct, with the shape of the received array and the type of
          `array`; None means that the received array is like `array`

    Has a derivative unless `source` is None: the result's gradient is sent back to `source`. Raises
    like `broadcast`.
    """
    own = _array(array)
    shape, dtype = _form(own if like is None else like)
    if dtype != own.dtype:
        raise InvalidArgument(
            f"like has type {dtype}, but array has type {own.dtype}; must be equal"
        )
    size = members(comm)[2]
    return _call(
        primitives.sendrecv_p,
        comm,
        own,
        shape=shape,
        dest=adapter.check_rank("dest", dest, size),
        source=_source(source, size),
        send_tag=_tag("send_tag", send_tag),
        recv_tag=_tag("recv_tag", recv_tag),
    )


def _array(value: ArrayLike) -> Array:
    array = as_array(value)
    dtypes.from_name(str(array.dtype), "array")
    return array


def _form(like: Any) -> tuple[tuple[int, ...], Any]:
    shaped = like if hasattr(like, "shape") and hasattr(like, "dtype") else jnp.asarray(like)
    dtype = jax.dtypes.canonicalize_dtype(shaped.dtype)
    dtypes.from_name(str(dtype), "like")
    return tuple(shaped.shape), dtype


def _op(op: str, arrays: Sequence[Array]) -> int:
    """Return the ddl_op of this name. Raises Unsupported, before a program is compiled, if libddl
    does not support it for the arrays' types."""
    number = op_value(op)
    for array in arrays:
        if not adapter.has_op(str(array.dtype), op):
            raise Unsupported(f"op: {op} is not supported for {array.dtype}")
    return number


def _source(source: int | None, size: int) -> int:
    return -1 if source is None else adapter.check_rank("source", source, size)


def _tag(name: str, tag: int) -> int:
    if not 0 <= tag < 2**31:
        raise InvalidArgument(f"{name} is {tag}; must be from 0 to {2**31 - 1}")
    return int(tag)


def _sum_parts(
    primitive: Primitive,
    own: Array,
    shape: tuple[int, ...],
    workers: int,
    op: str,
    comm: Communicator | None,
) -> Array:
    """Add the operands to this rank's parts, and return the result of the primitive for the parts.

    Additions are operations of ddl_jax: XLA would combine its own additions with the operations
    before them, which changes the bits.
    """
    number = _op(op, [own])
    kind = own.dtype.name
    if op not in ("sum", "average") or kind == "bool" or kind.startswith("float8"):
        raise Unsupported(
            f"op is {op} of {kind}; must be sum or average, and not of bool or float8"
        )
    if not own.shape:
        raise InvalidArgument(
            "operands has no dimension: pass jnp.stack of this rank's workers' arrays"
        )
    order = contiguous(workers, members(comm)[2])
    wide = own.astype(jnp.float32) if kind in HALVES else own

    def add(left: Array, right: Array) -> Array:
        return _call(primitives.add_p, comm, left, right)

    parts = order.fold(members(comm)[1], list(wide), add)
    numbers = {"op": number, "workers": order.workers, "parts": len(parts)}
    return _call(primitive, comm, *(parts or [wide]), **numbers, shape=shape, dtype=own.dtype)


def _call(
    primitive: Primitive, comm: Communicator | None, *arrays: Array, **parameters: Any
) -> Array:
    """Run an operation of all ranks, or of a communicator's ranks, and return its only result."""
    which, _, size = members(comm)
    (result,) = primitive.bind(*arrays, comm=which, size=size, **parameters)
    return result
