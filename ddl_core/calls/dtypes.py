# SPDX-License-Identifier: Apache-2.0
"""The element types of libddl: their values in ddl.h, in NumPy and in DLPack."""

from __future__ import annotations

from dataclasses import dataclass

from ddl_core.errors import InvalidArgument


@dataclass(frozen=True)
class DType:
    """An element type.

    value   the ddl_dtype
    name    NumPy's name of the type; for bfloat16 and float8, ml_dtypes' name
    dlpack  DLPack's (type code, bits)
    """

    name: str
    value: int
    itemsize: int
    dlpack: tuple[int, int]


_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6  # DLDataTypeCode
_FLOAT8_E4M3FN, _FLOAT8_E5M2 = 10, 12

TABLE = (
    DType("bool", 1, 1, (_BOOL, 8)),
    DType("int8", 2, 1, (_INT, 8)),
    DType("uint8", 3, 1, (_UINT, 8)),
    DType("int16", 4, 2, (_INT, 16)),
    DType("uint16", 5, 2, (_UINT, 16)),
    DType("int32", 6, 4, (_INT, 32)),
    DType("uint32", 7, 4, (_UINT, 32)),
    DType("int64", 8, 8, (_INT, 64)),
    DType("uint64", 9, 8, (_UINT, 64)),
    DType("float16", 10, 2, (_FLOAT, 16)),
    DType("bfloat16", 11, 2, (_BFLOAT, 16)),
    DType("float32", 12, 4, (_FLOAT, 32)),
    DType("float64", 13, 8, (_FLOAT, 64)),
    DType("float8_e4m3fn", 14, 1, (_FLOAT8_E4M3FN, 8)),
    DType("float8_e5m2", 15, 1, (_FLOAT8_E5M2, 8)),
    DType("complex64", 16, 8, (_COMPLEX, 64)),
    DType("complex128", 17, 16, (_COMPLEX, 128)),
)

_BY_NAME = {dtype.name: dtype for dtype in TABLE}
_BY_DLPACK = {dtype.dlpack: dtype for dtype in TABLE}
_NAMES = ", ".join(_BY_NAME)


def from_name(name: str, argument: str) -> DType:
    """Return the type with NumPy's `name`. Raises InvalidArgument, which names `argument`, if there
    is none."""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise InvalidArgument(f"{argument} has dtype {name}; must be one of {_NAMES}") from None


def from_dlpack(code: int, bits: int, argument: str) -> DType:
    """Return the type with DLPack's `code` and `bits`. Raises InvalidArgument if there is none."""
    try:
        return _BY_DLPACK[code, bits]
    except KeyError:
        raise InvalidArgument(
            f"{argument} has DLPack type code {code} with {bits} bits; must be one of {_NAMES}"
        ) from None
