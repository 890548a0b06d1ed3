# SPDX-License-Identifier: Apache-2.0
"""Wire formats in the caller's memory: float32 as packed bytes, see docs/wire.md."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ddl_core.base._lib import check, ffi, lib
from ddl_core.base.config import wire_number
from ddl_core.calls.arguments import expect, pointer
from ddl_core.calls.buffer import Buffer, as_buffer
from ddl_core.errors import InvalidArgument

Array = TypeVar("Array")
Packed = npt.NDArray[np.uint8]


def packed_size(count: int, wire: str) -> int:
    """Return the bytes of `count` float32 in a wire format: "f32", "bf16", "int8" or "int4".

    A multiple of 128 elements can be packed and unpacked by itself. Raises InvalidArgument.
    """
    if count < 0:
        raise InvalidArgument(f"count is {count}; must be at least 0")
    return int(lib.ddl_packed_size(count, wire_number(wire or "")))


def pack(values: Any, wire: str) -> Packed:
    """Return the float32 array `values` in a wire format.

    The bytes do not depend on the processor. Raises InvalidArgument.
    """
    source = _on_host(values, "values", "float32")
    packed = np.empty(packed_size(source.count, wire), np.uint8)
    to = ffi.from_buffer(packed, require_writable=True)
    check(lib.ddl_pack(to, pointer(source), source.count, wire_number(wire)))
    return packed


def unpack(packed: Any, wire: str, out: Array) -> Array:
    """Set the float32 array `out` to the elements of the uint8 array `packed`, which `pack` has
    made. Return out.

    Packing the result again gives the same bytes. Raises InvalidArgument.
    """
    target = _on_host(out, "out", "float32", write=True)
    source = _on_host(packed, "packed", "uint8")
    expect("packed", source.count, packed_size(target.count, wire), f"the size of {wire}")
    check(lib.ddl_unpack(pointer(target), pointer(source), target.count, wire_number(wire)))
    return out


def _on_host(array: Any, argument: str, dtype: str, write: bool = False) -> Buffer:
    """Return an array in host memory. Raises InvalidArgument for other arrays."""
    buffer = as_buffer(array, argument, write=write)
    if buffer.dtype.name != dtype:
        raise InvalidArgument(f"{argument} has dtype {buffer.dtype.name}; must be {dtype}")
    if buffer.contents is not None:
        raise InvalidArgument(f"{argument} is on a GPU; must be in host memory")
    return buffer
