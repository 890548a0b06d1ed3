# SPDX-License-Identifier: Apache-2.0
"""Training on many ranks: average gradients and equal initial parameters."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ddl_core import adapter
from ddl_core.adapter_objects import check, packed, unpacked
from ddl_core.errors import InvalidArgument
from ddl_jax.collectives import broadcast, grouped_allreduce
from ddl_jax.packing import WIRES, allreduce_flat
from ddl_jax.world import rank, size

if TYPE_CHECKING:
    from ddl_core.base.names import AnyCompression, Compression, GradientOp

Tree = TypeVar("Tree")

_NUMBERS = (bool, int, float, complex)
_COMPRESSED = {None: None, "f16": jnp.float16, "bf16": jnp.bfloat16}


def allreduce_gradients(
    gradients: Tree, op: GradientOp = "average", *, compression: Compression | None = None
) -> Tree:
    """Return the ranks' average, or "sum", of each gradient in a tree. Uses one operation.

    compression: "f16" or "bf16" to send gradients of float32 and float64 in that type, which halves
    or quarters the bytes and costs precision.

    All ranks call it, with trees of the same structure. Raises like `allreduce`, and
    InvalidArgument for another compression.
    """
    if compression in WIRES:
        raise InvalidArgument(
            f"compression is {compression}, which needs a state for what rounding loses; use"
            " gradient_transformation, or f16 or bf16"
        )
    adapter.check_compression(compression)
    dtype = _COMPRESSED[compression]
    if dtype is None:
        return grouped_allreduce(gradients, op)

    def shrink(gradient: Any) -> Any:
        return gradient.astype(dtype) if gradient.dtype in (jnp.float32, jnp.float64) else gradient

    reduced = grouped_allreduce(jax.tree.map(shrink, gradients), op)
    result: Tree = jax.tree.map(lambda own, total: total.astype(own.dtype), gradients, reduced)
    return result


def value_and_grad(
    function: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    op: GradientOp = "average",
    compression: Compression | None = None,
    **options: Any,
) -> Callable[..., Any]:
    """Return a function like jax.value_and_grad, with value and gradient averaged or summed over
    the ranks.

    The auxiliary results of `function` (has_aux) are this rank's own. op, compression: as for
    `allreduce_gradients`. All ranks call the result.
    """
    local = jax.value_and_grad(function, argnums, has_aux, **options)

    def global_value_and_grad(*arguments: Any, **named: Any) -> Any:
        value, gradients = local(*arguments, **named)
        own, aux = value if has_aux else (value, None)
        if compression is None:
            own, gradients = grouped_allreduce((own, gradients), op)
        else:
            gradients = allreduce_gradients(gradients, op, compression=compression)
            own = grouped_allreduce(own, op)
        return ((own, aux) if has_aux else own), gradients

    return global_value_and_grad


class PackedState(NamedTuple):
    """The state of a `gradient_transformation` that packs gradients.

    residual  the rounding errors of this rank's float32 gradients, concatenated
    """

    residual: Array


def gradient_transformation(
    op: GradientOp = "average", *, compression: AnyCompression | None = None
) -> Any:
    """Return an optax.GradientTransformation that averages or sums the gradients of all ranks. Put
    it at the beginning of an optax.chain.

    op           as for `allreduce_gradients`
    compression  as for `allreduce_gradients`; or "int8" or "int4": gradients of float32 in CPU
                 memory are sent between hosts in a quarter or an eighth of the bytes, see
                 docs/wire.md. Rounding errors are added to the next gradients. They are in the
                 state, which differs between ranks: save and restore it on each rank
    """
    import optax

    adapter.check_compression(compression, WIRES)
    if compression == "int8" or compression == "int4":  # one of WIRES
        return optax.GradientTransformation(_zero_state, functools.partial(_pack, op, compression))

    def update(updates: Any, state: Any, parameters: Any = None) -> Any:
        return allreduce_gradients(updates, op, compression=compression), state

    return optax.GradientTransformation(lambda parameters: optax.EmptyState(), update)


def _is_packed(leaf: Any) -> bool:
    return bool(jnp.result_type(leaf) == jnp.float32)


def _zero_state(parameters: Any) -> PackedState:
    packed = [leaf for leaf in jax.tree.leaves(parameters) if _is_packed(leaf)]
    return PackedState(jnp.zeros(sum(map(jnp.size, packed)), jnp.float32))


def _pack(
    op: GradientOp, wire: str, gradients: Tree, state: PackedState, parameters: Any = None
) -> tuple[Tree, PackedState]:
    """Return the combined gradients, and the state with the new residual."""
    leaves, tree = jax.tree.flatten(gradients)
    chosen = [i for i, leaf in enumerate(leaves) if _is_packed(leaf)]
    others = [i for i, leaf in enumerate(leaves) if not _is_packed(leaf)]
    for i, reduced in zip(others, grouped_allreduce([leaves[i] for i in others], op), strict=True):
        leaves[i] = reduced
    if not chosen:
        return jax.tree.unflatten(tree, leaves), state
    flat = jnp.concatenate([jnp.ravel(leaves[i]) for i in chosen])
    flat, residual = allreduce_flat(flat, state.residual, op, wire)
    ends = np.cumsum([jnp.size(leaves[i]) for i in chosen])[:-1]
    for i, part in zip(chosen, jnp.split(flat, ends), strict=True):
        leaves[i] = part.reshape(jnp.shape(leaves[i]))
    return jax.tree.unflatten(tree, leaves), PackedState(residual)


def broadcast_parameters(parameters: Tree, root: int = 0) -> Tree:
    """Return the root's arrays and Python numbers on all ranks, for a pytree of parameters,
    optimizer state, a step counter and so on.

    All ranks call it with trees of the same structure. Keys of jax.random are broadcast, too. Other
    leaves, such as functions and strings, stay each rank's own. A NumPy array whose 64-bit type JAX
    would narrow is returned as a NumPy array of that type. Raises like `broadcast`, and
    InvalidArgument for such an array or a Python number inside jax.jit.
    """
    leaves, structure = jax.tree.flatten(parameters)
    numbers = [leaf for leaf in leaves if isinstance(leaf, _NUMBERS)]
    received = iter(broadcast_object(numbers, root) if numbers else [])

    def give(leaf: Any) -> Any:
        if isinstance(leaf, _NUMBERS):
            return next(received)
        if not isinstance(leaf, (Array, jax.core.Tracer)) and not hasattr(leaf, "__array__"):
            return leaf
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            data = broadcast(jax.random.key_data(leaf), root)
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
        if jax.dtypes.canonicalize_dtype(leaf.dtype) != leaf.dtype:
            return _broadcast_wide(np.asarray(leaf), root)
        return broadcast(leaf, root)

    result: Tree = jax.tree.unflatten(structure, [give(leaf) for leaf in leaves])
    return result


def broadcast_object(value: Any, root: int = 0) -> Any:
    """Return the root's object on all ranks. On other ranks `value` is ignored.

    The object is pickled, so the ranks must trust each other. All ranks call it. Raises like
    `broadcast`, InvalidArgument inside jax.jit, and TypeError on all ranks if pickling fails.
    """
    root = adapter.check_rank("root", root, size())
    data = packed(value, root) if rank() == root else b""
    length = _outside_jit(broadcast(np.array([len(data)], np.uint32), root))
    content = np.zeros(int(length[0]), np.uint8)
    content[: len(data)] = np.frombuffer(data, np.uint8)
    content = _outside_jit(broadcast(content, root))
    if rank() == root:
        check(data)
        return value
    return unpacked(content.tobytes())


def _outside_jit(received: Any) -> Any:
    """Return the array as a NumPy array. Raises InvalidArgument inside jax.jit."""
    if isinstance(received, jax.core.Tracer):
        raise InvalidArgument(
            "broadcast_object, and broadcast_parameters of Python numbers, work outside of jax.jit"
            " only; pass numbers as arrays, such as jnp.asarray(3)"
        )
    return np.asarray(received)


def _broadcast_wide(array: Any, root: int) -> Any:
    """Broadcast a NumPy array of a type that JAX would narrow, as 32-bit numbers."""
    received = broadcast(np.ascontiguousarray(array).reshape(-1).view(np.uint32), root)
    if isinstance(received, jax.core.Tracer):
        raise InvalidArgument(
            f"parameters has a NumPy array of {array.dtype}, which jax.jit would narrow; call"
            " broadcast_parameters outside of jax.jit, or set jax_enable_x64"
        )
    return np.array(received).view(array.dtype).reshape(array.shape)[()]


def rank_key(key: Array) -> Array:
    """Return this rank's random key, derived from a key that all ranks share. Use it for dropout,
    noise and shuffling that should differ between ranks."""
    return jax.random.fold_in(key, rank())
