# SPDX-License-Identifier: Apache-2.0
"""The effects that keep the operations in order.

All operations have one ordered effect. So JAX passes a token through them, in the order of the
program, through jit, loops and branches, and from one compiled program to the next. The effect is
declared shardable: inside shard_map every process executes its own operations in that order.
"""

from __future__ import annotations

from jax._src import effects


class DdlEffect(effects.Effect):
    """A JAX effect of the operations that does not order them."""

    def __str__(self) -> str:
        return "ddl"


class DdlOrder(DdlEffect):
    """The JAX effect that orders the operations."""


EFFECT = DdlOrder()
# The second effect only works around a bug: if all effects of a program compiled ahead of time, by
# jit(f).lower(x).compile(), are ordered, the program loses the token from its second call on
# (pxla.create_cpp_call).
EFFECTS = frozenset({EFFECT, DdlEffect()})
for _set in (
    effects.lowerable_effects,
    effects.control_flow_allowed_effects,
    effects.custom_derivatives_allowed_effects,
    effects.remat_allowed_effects,
):
    _set.add_type(DdlEffect)
for _set in (effects.ordered_effects, effects.shardable_ordered_effects):
    _set.add_type(DdlOrder)
