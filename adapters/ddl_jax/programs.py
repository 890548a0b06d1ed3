"""Compiled programs that hold operations, called quickly.

jax.jit calls a program with an ordered effect by way of Python, which takes about a tenth of a
millisecond. `jit` here hides the effect from it: the program takes the token of the one before it
as an argument and returns its own, so jax.jit's quick way will do. The token lies where JAX keeps
those of ordered effects, so programs of jax.jit and of this `jit` wait for each other.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax._src import dispatch
from jax._src.core import Token, trace_state_clean
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import mlir

from ddl_jax.primitives import EFFECT, EFFECTS

Function = TypeVar("Function", bound=Callable[..., Any])

_FAILED = re.compile(
    "(INVALID_ARGUMENT|UNIMPLEMENTED|FAILED_PRECONDITION|RESOURCE_EXHAUSTED|UNAVAILABLE|ABORTED"
    "|DEADLINE_EXCEEDED|INTERNAL): "
)
_FIRST = np.zeros(0, np.bool_)  # the token before any other, of the kind that JAX has


def jit(function: Function, **options: Any) -> Function:
    """As jax.jit, for a function with operations of ddl_jax: calling what it returns takes some
    microseconds and not a hundred. Otherwise the two may be mixed at will.

    options: those of jax.jit. A function with other ordered effects (ordered callbacks) takes the
    way of jax.jit, as does everything where jax has several devices.
    """
    slow = jax.jit(function, **options)

    @functools.partial(jax.jit, **options)
    @functools.wraps(function)
    def program(*arguments: Any, ddl_token: Any, **named: Any) -> Any:
        leaves, tree = jax.tree.flatten((arguments, named))

        def flat(*values: Any) -> Any:
            place = iter(values)
            every = [next(place) if isinstance(x, jax.core.Tracer) else x for x in leaves]
            own, own_named = jax.tree.unflatten(tree, every)
            return function(*own, **own_named)

        arrays = [leaf for leaf in leaves if isinstance(leaf, jax.core.Tracer)]
        body, shapes = jax.make_jaxpr(flat, return_shape=True)(*arrays)
        if body.effects == EFFECTS:
            *results, token = scope_p.bind(ddl_token, *arrays, body=body)
        else:  # none at all, or others, which jax.jit has to see
            results, token = jaxpr_as_fun(body)(*arrays), None
        return jax.tree.unflatten(jax.tree.structure(shapes), results), token

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        if not trace_state_clean() or jax.device_count() > 1:
            return slow(*arguments, **named)
        try:
            result, token = program(*arguments, ddl_token=_before(), **named)
        except ValueError as error:
            if _FAILED.match(str(error)):  # so jaxlib says that an argument, the token, has failed
                raise jax.errors.JaxRuntimeError(str(error)) from None
            raise
        if token is not None:
            own = Token(token)
            own.is_plain = True  # those of jax.jit are arrays of a layout that programs refuse
            dispatch.runtime_tokens.set_token_result(EFFECT, own)
        return result

    call.lower = slow.lower  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def _before() -> Any:
    """What the next program has to wait for, and fails with when that has failed."""
    token = dispatch.runtime_tokens.current_tokens.get(EFFECT)
    if getattr(token, "is_plain", False):
        return token._buf
    if token is not None:
        token.block_until_ready()
    return _FIRST


@functools.lru_cache(maxsize=4096)
def of_primitive(primitive: Primitive, **parameters: Any) -> Callable[..., Any]:
    """The program of one operation."""
    return jit(functools.partial(primitive.bind, **parameters))


def forget() -> None:
    """Drop the token of the last program, which may hold an error."""
    dispatch.runtime_tokens.current_tokens.pop(EFFECT, None)


# ---- a program's body, without the effect ----

scope_p = Primitive("ddl_scope")
scope_p.multiple_results = True


def _abstract(token: Any, *_: Any, body: Any) -> Any:
    return [*body.out_avals, token]


def _lower(context: Any, token: Any, *operands: Any, body: Any) -> Any:
    inner = context.replace(
        avals_in=context.avals_in[1:],
        avals_out=context.avals_out[:-1],
        tokens_in=mlir.TokenSet.create([EFFECT]),
    )
    results = mlir.lower_fun(jaxpr_as_fun(body))(inner, *operands)
    return [*results, mlir.ir_constant(_FIRST)]


scope_p.def_abstract_eval(_abstract)
mlir.register_lowering(scope_p, _lower, cacheable=False)
