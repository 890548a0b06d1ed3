# SPDX-License-Identifier: Apache-2.0
"""Fast calls of compiled programs that have operations.

jax.jit calls a program with an ordered effect through Python, which takes about 0.1 ms. `jit` here
hides the effect: the program takes the token of the previous one as an argument and returns its
own, so jax.jit's fast path is used. The token is stored where JAX stores the tokens of ordered
effects, so programs of jax.jit and of this `jit` wait for each other.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, TypeVar, overload

import jax
import numpy as np
from jax._src import dispatch
from jax._src.core import Token, trace_state_clean
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import mlir

from ddl_jax.effects import EFFECT, EFFECTS

Function = TypeVar("Function", bound=Callable[..., Any])

_FAILED = re.compile(
    "(INVALID_ARGUMENT|UNIMPLEMENTED|FAILED_PRECONDITION|RESOURCE_EXHAUSTED|UNAVAILABLE|ABORTED"
    "|DEADLINE_EXCEEDED|INTERNAL): "
)
_FIRST = np.zeros(0, np.bool_)  # the first token, of JAX's type


@overload
def jit(function: Function, **options: Any) -> Function: ...


@overload
def jit(function: None = None, **options: Any) -> Callable[[Function], Function]: ...


def jit(function: Any = None, **options: Any) -> Any:
    """Compile a function with operations of ddl_jax, like jax.jit. A call of the result takes a few
    microseconds instead of a hundred. A program may also use jax.jit. Without a function, return a
    decorator with these options.

    options: the options of jax.jit. Some functions are called in the same way as with jax.jit,
    without the faster path: functions with shardings, functions with other ordered effects (ordered
    callbacks), and every function under jax.disable_jit or if jax has several devices.
    """
    if function is None:
        return functools.partial(jit, **options)
    slow = jax.jit(function, **options)
    if options.keys() & {"in_shardings", "out_shardings"}:  # they do not describe the token
        return slow

    @functools.partial(jax.jit, **options)
    @functools.wraps(function)
    def program(*arguments: Any, ddl_token: Any, **named: Any) -> Any:
        leaves, tree = jax.tree.flatten((arguments, named))

        def flat(*values: Any) -> Any:
            traced = iter(values)
            every = [next(traced) if isinstance(x, jax.core.Tracer) else x for x in leaves]
            own, own_named = jax.tree.unflatten(tree, every)
            return function(*own, **own_named)

        arrays = [leaf for leaf in leaves if isinstance(leaf, jax.core.Tracer)]
        body, shapes = jax.make_jaxpr(flat, return_shape=True)(*arrays)
        if body.effects == EFFECTS:
            *results, token = scope_p.bind(ddl_token, *arrays, body=body)
        else:  # no effects, or others, which jax.jit must handle
            results, token = jaxpr_as_fun(body)(*arrays), None
        return jax.tree.unflatten(jax.tree.structure(shapes), results), token

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        if jax.config.jax_disable_jit or not trace_state_clean() or jax.device_count() > 1:
            return slow(*arguments, **named)
        try:
            result, token = program(*arguments, ddl_token=_before(), **named)
        except ValueError as error:
            if _FAILED.match(str(error)):  # jaxlib's error for a failed argument, the token
                raise jax.errors.JaxRuntimeError(str(error)) from None
            raise
        if token is not None:
            own = Token(token)
            own.is_plain = True  # programs reject the array layout of tokens of jax.jit
            dispatch.runtime_tokens.set_token_result(EFFECT, own)
        return result

    def clear_cache() -> None:
        slow.clear_cache()
        program.clear_cache()

    methods = {"lower": slow.lower, "trace": slow.trace, "eval_shape": slow.eval_shape}
    vars(call).update(methods, clear_cache=clear_cache)
    return call


def _before() -> Any:
    """Return the token that the next program waits for. If the token has failed, the program fails,
    too."""
    token = dispatch.runtime_tokens.current_tokens.get(EFFECT)
    if getattr(token, "is_plain", False):
        return token._buf
    if token is not None:
        token.block_until_ready()
    return _FIRST


@functools.lru_cache(maxsize=4096)
def of_primitive(primitive: Primitive, **parameters: Any) -> Callable[..., Any]:
    """Return the compiled program that runs one operation."""
    return jit(functools.partial(primitive.bind, **parameters))


def forget() -> None:
    """Drop the last program's token, because it may hold that program's error."""
    dispatch.runtime_tokens.current_tokens.pop(EFFECT, None)


# ---- a program's body, without the effect ----

scope_p = Primitive("ddl_scope")
scope_p.multiple_results = True


def _run(token: Any, *arrays: Any, body: Any) -> Any:
    """Run the body operation by operation. jax_debug_nans uses this to find the first NaN."""
    return [*jaxpr_as_fun(body)(*arrays), token]


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


scope_p.def_impl(_run)
scope_p.def_abstract_eval(_abstract)
mlir.register_lowering(scope_p, _lower, cacheable=False)
