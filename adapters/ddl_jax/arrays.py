# SPDX-License-Identifier: Apache-2.0
"""The conversion of a program's values to arrays of JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ddl_core.errors import InvalidArgument


def as_array(value: Any) -> jax.Array:
    """Convert to an array of JAX. Without jax_enable_x64, JAX converts NumPy's types of 64 bits to
    32 bits. Raises InvalidArgument for an integer that does not fit, which JAX would truncate."""
    array = jnp.asarray(value)
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "iu":
        given: Any = value
        for number in given[given != given.astype(array.dtype)][:1]:
            raise InvalidArgument(
                f"array has the {value.dtype} {number}, which does not fit into JAX's"
                f" {array.dtype}; set jax_enable_x64"
            )
    return array
