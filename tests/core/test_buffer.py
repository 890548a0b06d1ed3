# SPDX-License-Identifier: Apache-2.0
"""Arrays of any kind are used without a copy, or raise an error with the argument's name."""

import array
import ctypes
import re
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from conftest import Run

from ddl_core.base import _lib
from ddl_core.calls.buffer import as_buffer
from ddl_core.calls.dtypes import TABLE
from ddl_core.errors import InvalidArgument

NUMPY_TYPES = [np.dtype(getattr(ml_dtypes, dtype.name, dtype.name)) for dtype in TABLE]
PLAIN_TYPES = [dtype for dtype in NUMPY_TYPES if not hasattr(ml_dtypes, dtype.name)]


class DLPack:
    """A tensor with DLPack as its only protocol."""

    def __init__(self, data: np.ndarray[Any, Any], device: tuple[int, int] = (1, 0)) -> None:
        self.data, self.device = data, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **arguments: Any) -> Any:
        return self.data.__dlpack__(**arguments)


class OldDLPack(DLPack):
    """A tensor with DLPack as it was before version 1.0."""

    def __dlpack__(self, stream: Any = None) -> Any:  # type: ignore[override]
        return self.data.__dlpack__(stream=stream)


class ArrayInterface:
    """A tensor with NumPy's array interface as its only protocol."""

    def __init__(self, data: np.ndarray[Any, Any]) -> None:
        self.data = data
        self.__array_interface__ = data.__array_interface__


def address(data: np.ndarray[Any, Any]) -> int:
    return data.ctypes.data


@pytest.mark.parametrize("dtype", NUMPY_TYPES, ids=str)
def test_numpy(dtype: np.dtype[Any]) -> None:
    data = np.zeros((3, 5), dtype)
    buffer = as_buffer(data, "send", write=True)
    assert (buffer.address, buffer.count, buffer.writable) == (address(data), 15, True)
    assert buffer.dtype.name == dtype.name
    assert buffer.dtype.itemsize == dtype.itemsize
    assert buffer.dtype.itemsize == _lib.lib.ddl_dtype_size(buffer.dtype.value)


def test_table_is_that_of_the_library() -> None:
    known = set(_lib.ffi.typeof("ddl_dtype").elements)
    assert {dtype.value for dtype in TABLE} == known


@pytest.mark.parametrize("wrap", [DLPack, OldDLPack, ArrayInterface])
@pytest.mark.parametrize("dtype", PLAIN_TYPES, ids=str)
def test_protocols_give_the_same_memory(wrap: type, dtype: np.dtype[Any]) -> None:
    data = np.zeros((2, 4), dtype)[1]
    buffer = as_buffer(wrap(data), "recv", write=True)
    assert (buffer.address, buffer.count, buffer.dtype.name) == (address(data), 4, dtype.name)


@pytest.mark.parametrize(
    ("source", "name", "count"),
    [
        (bytearray(8), "uint8", 8),
        (array.array("i", [1, 2, 3]), "int32", 3),
        (array.array("l", [1, 2, 3]), "int64", 3),
        (array.array("d", [1.0]), "float64", 1),
        (memoryview(bytearray(16)).cast("f"), "float32", 4),
        ((ctypes.c_int8 * 6)(), "int8", 6),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, (str, int)) else None,
)
def test_buffer_protocol(source: Any, name: str, count: int) -> None:
    buffer = as_buffer(source, "array", write=True)
    assert (buffer.dtype.name, buffer.count) == (name, count)


class Relabelled(DLPack):
    """A tensor with another DLPack type code, for types that NumPy lacks."""

    def __init__(self, data: np.ndarray[Any, Any], code: int) -> None:
        super().__init__(data)
        self.code = code

    def __dlpack__(self, **arguments: Any) -> Any:
        self.capsule = capsule = super().__dlpack__(**arguments)
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        at = get(capsule, b"dltensor_versioned")
        # DLManagedTensorVersioned: 32 bytes, then data, device, ndim, and the type code.
        ctypes.c_uint8.from_address(at + 32 + 8 + 8 + 4).value = self.code
        return capsule


@pytest.mark.parametrize(
    ("code", "carrier", "name"),
    [(4, "u2", "bfloat16"), (10, "u1", "float8_e4m3fn"), (12, "u1", "float8_e5m2")],
)
def test_types_that_numpy_lacks_by_dlpack(code: int, carrier: str, name: str) -> None:
    data = np.zeros(7, carrier)
    buffer = as_buffer(Relabelled(data, code), "send", write=True)
    assert (buffer.address, buffer.count, buffer.dtype.name) == (address(data), 7, name)


def test_memory_that_is_known() -> None:
    data = np.arange(3, dtype=np.int32)
    known = as_buffer(data, "array")
    assert as_buffer(known, "array", write=True) is known
    data.flags.writeable = False
    with pytest.raises(InvalidArgument, match="array: ddl_core.calls.buffer.Buffer is read-only"):
        as_buffer(as_buffer(data, "array"), "array", write=True)


def test_memory_stays_alive() -> None:
    data = bytearray(8)
    buffer = as_buffer(data, "send")
    with pytest.raises(BufferError):
        data.extend(b"more")
    del buffer
    data.extend(b"more")


@pytest.mark.parametrize("wrap", [lambda data: data, DLPack])
def test_strides_of_single_elements_do_not_matter(wrap: Any) -> None:
    data = np.zeros((3, 1, 4), np.int32)[:, ::-1]
    assert as_buffer(wrap(data), "send").count == 12


@pytest.mark.parametrize("wrap", [lambda data: data, DLPack, ArrayInterface])
def test_read_only(wrap: Any) -> None:
    data = np.zeros(4, np.float32)
    data.flags.writeable = False
    assert as_buffer(wrap(data), "send").writable is False
    with pytest.raises(InvalidArgument, match="recv: .* is read-only"):
        as_buffer(wrap(data), "recv", write=True)


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_arrays_of_jax_are_read_only(run_here: Run, name: str) -> None:
    """Without a copy, they may share memory with other arrays or with constants. This runs in a
    separate process: after JAX is imported, other tests may not fork."""
    text = f"""
from jax import numpy
from ddl_core.calls.buffer import as_buffer
data = numpy.zeros(4, "{name}")
assert as_buffer(data, "send").count == 4
as_buffer(data, "recv", write=True)
"""
    ended = run_here([sys.executable, "-c", text])
    assert ended.code == 1
    assert re.search("InvalidArgument: recv: jaxlib.*ArrayImpl is read-only", ended.err), ended.err


WRAPS = (lambda data: data, DLPack, ArrayInterface)
STRIDED = (np.zeros((4, 4), np.float32).T[:, :3], np.zeros(8, np.float32)[::2])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        *(
            (wrap(data), r"send: shape \(.*\) with strides .* not C-contiguous")
            for wrap in WRAPS
            for data in STRIDED
        ),
        *(
            (np.zeros(4, name), "send has dtype .*; must be one of bool, .*float64")
            for name in ("longdouble", "clongdouble", "datetime64[s]", "S4", "str_")
        ),
        (
            Relabelled(np.zeros(4, np.uint8), code=8),
            "send has DLPack type code 8 with 8 bits; must",
        ),
        (np.zeros(4, ">f4"), "send has dtype >f4 of foreign byte order"),
        (DLPack(np.zeros(4), device=(8, 1)), "send: .*DLPack device type 8:1, neither"),
        *(
            (value, "send: cannot use .*DLPack or __array_interface__")
            for value in (None, 3.0, [1.0, 2.0], "text")
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_refused(value: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        as_buffer(value, "send")


def test_read_only_bytes() -> None:
    with pytest.raises(InvalidArgument, match="array: bytes is read-only"):
        as_buffer(b"1234", "array", write=True)


@pytest.mark.parametrize("wrap", [lambda data: data, DLPack])
def test_empty(wrap: Any) -> None:
    assert as_buffer(wrap(np.zeros((0, 3), np.float32)), "send").count == 0
