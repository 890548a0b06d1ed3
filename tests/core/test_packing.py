# SPDX-License-Identifier: Apache-2.0
"""ddl_core.pack and unpack. libddl/tests/api/test_packing.c has the bits."""

from typing import Any

import numpy as np
import pytest

import ddl_core
from ddl_core.errors import InvalidArgument

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(("wire", "size", "limit"), [("bf16", 600, 256), ("int8", 303, 127)])
def test_a_round_trip(wire: str, size: int, limit: int) -> None:
    values = np.linspace(-1, 1, 300, dtype=np.float32)
    packed = ddl_core.pack(values, wire)
    assert (packed.dtype, packed.shape) == (np.uint8, (size,))
    assert ddl_core.packed_size(300, wire) == size
    found = ddl_core.unpack(packed, wire, np.empty(300, np.float32))
    assert 0 < np.abs(found - values).max() <= 1 / limit
    assert ddl_core.pack(found, wire).tobytes() == packed.tobytes()


def test_f32_keeps_all_bits() -> None:
    values = np.array([1e-40, np.nan, -np.inf], np.float32)
    packed = ddl_core.pack(values, "f32")
    assert ddl_core.unpack(packed, "f32", np.empty_like(values)).tobytes() == values.tobytes()


FLOATS, BYTES = np.zeros(128, np.float32), np.zeros(65, np.uint8)
REFUSED: list[tuple[Any, str]] = [
    (lambda: ddl_core.pack(FLOATS, "int2"), "wire is 'int2'; must be one of f32, bf16, int8, int4"),
    (lambda: ddl_core.pack(FLOATS.astype(np.float64), "int4"), "values has dtype float64"),
    (lambda: ddl_core.unpack(BYTES, "int4", FLOATS.astype(np.float64)), "out has dtype float64"),
    (lambda: ddl_core.unpack(BYTES, "int8", FLOATS), "packed has 65 elements; must have 129"),
    (lambda: ddl_core.unpack(FLOATS, "f32", FLOATS), "packed has dtype float32; must be uint8"),
    (lambda: ddl_core.packed_size(-1, "int8"), "count is -1; must be at least 0"),
    (lambda: ddl_core.packed_size(1, None), "wire is ''; must be one of"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "text"), REFUSED)
def test_what_is_refused(call: Any, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        call()
