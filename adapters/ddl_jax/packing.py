# SPDX-License-Identifier: Apache-2.0
"""Gradients that are sent between hosts in a wire format of fewer bytes, with error feedback."""

from __future__ import annotations

from jax import Array

from ddl_core.base.config import wire_number
from ddl_core.calls.arguments import op_value
from ddl_jax import primitives
from ddl_jax.communicators import Communicator, members

WIRES = ("int8", "int4")


def allreduce_flat(
    flat: Array, residual: Array, op: str, wire: str, *, comm: Communicator | None = None
) -> tuple[Array, Array]:
    """Reduce a flat array of float32 in this wire format. Return the result and the new
    residual."""
    which, _, ranks = members(comm)
    how = {"op": op_value(op), "wire": wire_number(wire), "comm": which, "size": ranks}
    result, lost = primitives.allreduce_packed_p.bind(flat, residual, **how)
    return result, lost
