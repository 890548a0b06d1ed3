# SPDX-License-Identifier: Apache-2.0
"""The operations as primitives of JAX: their shapes, batching and derivatives, and their lowering
to calls of csrc/handler.c."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.core import abstract_token, standard_vma_rule
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ddl_core.calls.arguments import OPS
from ddl_jax import programs
from ddl_jax.effects import EFFECT, EFFECTS

TARGET = "ddl"  # the target's name in XLA of csrc/handler.c
ON_CPUS_ONLY = ("add", "allreduce_packed", "allreduce_parts", "reduce_scatter_parts")

Array = Any
Rule = Callable[..., Any]


def _run(primitive: Primitive, *arrays: Any, **parameters: Any) -> Any:
    """Run the operation outside of jit. It is compiled even under jax.disable_jit, like JAX's own
    primitives."""
    run = programs.of_primitive(primitive, **parameters)
    if not jax.config.jax_disable_jit:
        return run(*arrays)
    with jax.disable_jit(False):
        return run(*arrays)


def _define(kind: str, shapes: Rule, in_place: bool = False) -> Primitive:
    """Define a primitive of several results. `shapes(*arrays, **parameters)` returns the shape and
    type of each result. Numeric parameters become attributes of the call."""
    primitive = Primitive(f"ddl_{kind}")
    primitive.multiple_results = True
    primitive.def_impl(functools.partial(_run, primitive))

    def abstract(*arrays: Any, **parameters: Any) -> Any:
        standard_vma_rule(primitive.name, *arrays)
        return shapes(*arrays, **parameters), EFFECTS

    def lower(
        context: Any, *operands: Any, is_gpu: bool = False, **parameters: Any
    ) -> Sequence[Any]:
        _check_devices(context)
        if is_gpu and kind in ON_CPUS_ONLY:
            raise NotImplementedError(f"{primitive.name} is not supported on GPUs, only on CPUs")
        numbers = {
            name: np.int64(value) for name, value in parameters.items() if isinstance(value, int)
        }
        given = list(context.avals_in)
        if kind == "recv":  # the operand only carries the batch of vmap
            operands, given = (), []
        aliases = {i: i for i, value in enumerate(operands) if in_place and _may_reuse(value)}
        # The handler itself cannot write to GPU memory.
        if is_gpu and kind == "broadcast":
            aliases = {0: 0}
        if is_gpu and kind == "reduce":
            zeros = np.broadcast_to(np.zeros((), given[0].dtype), given[0].shape)
            operands = (*operands, mlir.ir_constant(zeros))
            given, aliases = given * 2, {1: 0}
        rule = jax.ffi.ffi_lowering(TARGET, has_side_effect=True, operand_output_aliases=aliases)
        inner = context.replace(
            avals_in=(*given, abstract_token),
            avals_out=(*context.avals_out, abstract_token),
        )
        token = context.tokens_in.get(EFFECT)
        *results, token = rule(inner, *operands, token, kind=kind, **numbers)
        context.set_tokens_out(context.tokens_in.update_tokens(mlir.TokenSet({EFFECT: token})))
        return results

    primitive.def_effectful_abstract_eval(abstract)
    # Not cached: a cached rule is lowered in its own function, where _may_reuse cannot work.
    mlir.register_lowering(primitive, lower, platform="cpu", cacheable=False)
    on_gpu = functools.partial(lower, is_gpu=True)
    mlir.register_lowering(primitive, on_gpu, platform="cuda", cacheable=False)
    return primitive


def _check_devices(context: Any) -> None:
    """Raise NotImplementedError if the program runs on several devices of one process. A rank is
    a process, and the order of operations on its devices would differ between ranks."""
    axes = context.module_context.axis_context
    devices = axes.num_devices if hasattr(axes, "num_devices") else axes.mesh.size
    if devices is not None and devices > jax.process_count():
        raise NotImplementedError(
            f"a program with operations of ddl_jax runs on {devices} devices of"
            f" {jax.process_count()} process(es); must run on one device of each process"
        )


def _may_reuse(operand: Any) -> bool:
    """Return True if using the operand's memory for the result is faster.

    It is slower if the operand is an argument of the whole program that was not donated: XLA would
    copy it first. (If the operand is needed later, XLA copies it in any case, so only speed depends
    on this.)
    """
    from jaxlib.mlir import ir

    if not isinstance(operand, ir.BlockArgument):
        return True
    function = operand.owner.owner.operation
    if function.name != "func.func" or function.attributes["sym_name"].value != "main":
        return True
    if "arg_attrs" not in function.attributes:
        return False
    attributes = function.attributes["arg_attrs"][operand.arg_number]
    return any(name in attributes for name in ("tf.aliasing_output", "jax.buffer_donor"))


def _like(*arrays: Any, **_: Any) -> list[Any]:
    return list(arrays)


def _rows(array: Any, rows: int) -> list[Any]:
    return [array.update(shape=(rows, *array.shape[1:]))]


# ---- the primitives; their parameters include `comm`, a communicator's number, and `size` ----

# Takes any number of arrays, and the parameters op and shared: whether all ranks compute one loss,
# see shared_p.
allreduce_p = _define("allreduce", _like, in_place=True)
# Takes an array of float32 and this rank's residual of the same shape, and the parameters op and
# wire; the second result is the new residual.
allreduce_packed_p = _define("allreduce_packed", _like, in_place=True)
broadcast_p = _define("broadcast", _like, in_place=True)  # root
reduce_p = _define("reduce", _like)  # the sum on the root, zeros elsewhere; root
allgather_p = _define("allgather", lambda array, size, **_: _rows(array, array.shape[0] * size))
reduce_scatter_p = _define(
    "reduce_scatter", lambda array, size, **_: _rows(array, array.shape[0] // size)
)
alltoall_p = _define("alltoall", lambda array, **_: [array])
sendrecv_p = _define(  # dest, send_tag, source, recv_tag
    "sendrecv", lambda array, *, shape, **_: [array.update(shape=shape)]
)
send_p = _define("send", lambda *_, **__: [])
# Takes no array, or one of the result's form, and the parameters source, recv_tag and tells:
# whether the second result is the source.
recv_p = _define(
    "recv",
    lambda *_, shape, dtype, tells, **__: [
        jax.core.ShapedArray(shape, dtype),
        *([jax.core.ShapedArray((), jnp.int32)] if tells else []),
    ],
)
add_p = _define("add", lambda left, right, **_: [left])  # with the bits of ordered sums
# Take the parts of this rank, or an array without elements if it has none, and the parameters op,
# workers (of all ranks), parts (their number) and the result's shape and dtype.
allreduce_parts_p, reduce_scatter_parts_p = (
    _define(kind, lambda *_, shape, dtype, **__: [jax.core.ShapedArray(shape, dtype)])
    for kind in ("allreduce_parts", "reduce_scatter_parts")
)
barrier_p = _define("barrier", lambda **_: [jax.core.ShapedArray((), jnp.uint8)])


# ---- batching: operations along the first dimension get the batch as the second one ----


def _batch_in_place(primitive: Primitive) -> Rule:
    def rule(arrays: Any, dims: Any, **parameters: Any) -> Any:
        return primitive.bind(*arrays, **parameters), list(dims)

    return rule


def _batch_second(primitive: Primitive) -> Rule:
    def rule(arrays: Any, dims: Any, **parameters: Any) -> Any:
        (array,), (dim,) = arrays, dims
        return primitive.bind(jnp.moveaxis(array, dim, 1), **parameters), [1]

    return rule


def _batch_sendrecv(arrays: Any, dims: Any, *, shape: Any, **parameters: Any) -> Any:
    (array,), (dim,) = arrays, dims
    shape = (array.shape[dim], *shape)
    return sendrecv_p.bind(jnp.moveaxis(array, dim, 0), shape=shape, **parameters), [0]


def _batch_send(arrays: Any, dims: Any, **parameters: Any) -> Any:
    return send_p.bind(jnp.moveaxis(arrays[0], dims[0], 0), **parameters), []


def _batch_recv(arrays: Any, dims: Any, *, shape: Any, **parameters: Any) -> Any:
    (like,), (dim,) = arrays, dims
    shape = (like.shape[dim], *shape)
    results = recv_p.bind(jnp.moveaxis(like, dim, 0), shape=shape, **parameters)
    return results, [0, None][: len(results)]


def _batch_add(arrays: Any, dims: Any, **parameters: Any) -> Any:
    return add_p.bind(*map(_move(0), arrays, dims), **parameters), [0]


def _batch_parts(primitive: Primitive, axis: int) -> Rule:
    """Return the batching rule of a sum of parts, which moves the batch to axis `axis` of the parts
    and of the result."""

    def rule(arrays: Any, dims: Any, *, shape: Any, **parameters: Any) -> Any:
        shape = (*shape[:axis], arrays[0].shape[dims[0]], *shape[axis:])
        return primitive.bind(*map(_move(axis), arrays, dims), shape=shape, **parameters), [axis]

    return rule


def _move(axis: int) -> Callable[[Array, int], Array]:
    return lambda array, dim: jnp.moveaxis(array, dim, axis)


for _p in (allreduce_p, broadcast_p, reduce_p):
    batching.primitive_batchers[_p] = _batch_in_place(_p)
for _p in (allgather_p, reduce_scatter_p, alltoall_p):
    batching.primitive_batchers[_p] = _batch_second(_p)
batching.primitive_batchers[add_p] = _batch_add
batching.primitive_batchers[allreduce_parts_p] = _batch_parts(allreduce_parts_p, 0)
batching.primitive_batchers[reduce_scatter_parts_p] = _batch_parts(reduce_scatter_parts_p, 1)
batching.primitive_batchers[sendrecv_p] = _batch_sendrecv
batching.primitive_batchers[send_p] = _batch_send
batching.primitive_batchers[recv_p] = _batch_recv


# ---- derivatives ----
#
# Each linear operation is a map from all ranks' arrays to all ranks' results, and its transpose is
# the transpose of that map: grad gives the derivative of the sum of all ranks' outputs.


def _linear(primitive: Primitive, transpose: Rule, is_linear: Rule = lambda **_: True) -> None:
    def check(parameters: Any) -> None:
        if not is_linear(**parameters):
            raise NotImplementedError(
                f"{primitive.name} supports derivatives only for the ops sum and average"
            )

    def jvp(primals: Any, tangents: Any, **parameters: Any) -> Any:
        outputs = primitive.bind(*primals, **parameters)
        given = [i for i, tangent in enumerate(tangents) if type(tangent) is not ad.Zero]
        changes = [ad.Zero(jax.typeof(output).to_tangent_aval()) for output in outputs]
        if given:
            check(parameters)
            moved = primitive.bind(*(tangents[i] for i in given), **parameters)
            for i, tangent in zip(given, moved, strict=True):
                changes[i] = tangent
        return outputs, changes

    def transposed(cotangents: Any, *primals: Any, **parameters: Any) -> Any:
        check(parameters)
        given = [i for i, cotangent in enumerate(cotangents) if type(cotangent) is not ad.Zero]
        results = [ad.Zero(primal.aval) for primal in primals]
        if given:
            own = [primals[i].aval for i in given]
            moved = transpose(*(cotangents[i] for i in given), primals=own, **parameters)
            for i, cotangent in zip(given, moved, strict=True):
                results[i] = cotangent
        return results

    ad.primitive_jvps[primitive] = jvp
    ad.primitive_transposes[primitive] = transposed


def _sums(*, op: int, **_: Any) -> bool:
    return op in (OPS["sum"], OPS["average"])


def _transpose_allgather(cotangent: Array, *, primals: Any, **rest: Any) -> Any:
    return reduce_scatter_p.bind(cotangent, op=OPS["sum"], **rest)


def _transpose_reduce_scatter(
    cotangent: Array, *, primals: Any, op: int, size: int, **rest: Any
) -> Any:
    (gathered,) = allgather_p.bind(cotangent, size=size, **rest)
    return [gathered / size if op == OPS["average"] else gathered]


def _transpose_sendrecv(
    cotangent: Array,
    *,
    primals: Any,
    dest: int,
    source: int,
    send_tag: int,
    recv_tag: int,
    **rest: Any,
) -> Any:
    if source < 0:
        raise NotImplementedError("ddl_sendrecv from any source has no transpose")
    return sendrecv_p.bind(
        cotangent,
        **{**rest, "shape": primals[0].shape},
        dest=source,
        source=dest,
        send_tag=recv_tag,
        recv_tag=send_tag,
    )


def _unchanged(primitive: Primitive) -> Rule:
    return lambda *cotangents, primals, **parameters: primitive.bind(*cotangents, **parameters)


def _transpose_allreduce(*cotangents: Array, primals: Any, shared: int, **rest: Any) -> Any:
    chosen = shared_p if shared else allreduce_p
    return chosen.bind(*cotangents, shared=shared, **rest)


_linear(allreduce_p, _transpose_allreduce, _sums)
_linear(broadcast_p, _unchanged(reduce_p))
_linear(reduce_p, _unchanged(broadcast_p))
_linear(alltoall_p, _unchanged(alltoall_p))
_linear(allgather_p, _transpose_allgather)
_linear(reduce_scatter_p, _transpose_reduce_scatter, _sums)
_linear(sendrecv_p, _transpose_sendrecv)


# ---- the transpose of an all-reduce if all ranks compute the same loss: the identity, whose
# ---- transpose is the all-reduce again; it does not communicate

shared_p = Primitive("ddl_shared")
shared_p.multiple_results = True
shared_p.def_impl(lambda *arrays, **_: list(arrays))
shared_p.def_abstract_eval(_like)
mlir.register_lowering(shared_p, lambda _, *operands, **__: list(operands))
batching.primitive_batchers[shared_p] = _batch_in_place(shared_p)
_linear(shared_p, _unchanged(allreduce_p))
