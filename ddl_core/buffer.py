# SPDX-License-Identifier: Apache-2.0
"""Finds the memory of any array, without a copy and without importing a framework.

An adapter that knows the memory passes a Buffer. Other arrays are tried in this order: NumPy arrays
(with bfloat16, which refuses the buffer protocol), the buffer protocol (bytearray, array.array,
memoryview, ...), DLPack (PyTorch, JAX, ...), and the `__array_interface__`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddl_core import _dlpack, dtypes
from ddl_core._lib import address
from ddl_core.dtypes import DType
from ddl_core.errors import InvalidArgument


@dataclass(slots=True)
class Buffer:
    """C-contiguous host memory: `count` elements of `dtype` at `address`, kept alive by `owner`."""

    address: int
    count: int
    dtype: DType
    writable: bool
    owner: object


def as_buffer(array: Any, argument: str, *, write: bool = False) -> Buffer:
    """The memory of `array`.

    `argument` is its name in messages. `write` says that the memory will be written to. Raises
    InvalidArgument if `array` is no array, is not in host memory, has an element type that libddl
    lacks, is not C-contiguous, or is read-only and `write` is set.
    """
    if isinstance(array, Buffer):
        found = array
    elif isinstance(array, np.ndarray):
        found = _from_numpy(array, argument)
    else:
        found = _find(array, argument)
    if write and not found.writable:
        raise InvalidArgument(f"{argument}: {_describe(array)} is read-only, and is to be written")
    return found


def _find(array: Any, argument: str) -> Buffer:
    refusals = []
    try:
        view = memoryview(array)
    except TypeError:
        pass  # has no buffer protocol
    except (BufferError, ValueError) as error:  # has it, but not for this array
        refusals.append(str(error))
    else:
        return _from_numpy(_as_numpy(view, array, argument), argument)
    if hasattr(array, "__dlpack__"):
        try:
            memory = _dlpack.read(array)
        except (BufferError, ValueError, RuntimeError) as error:
            refusals.append(str(error))
        else:
            return _from_dlpack(memory, array, argument)
    if hasattr(array, "__array_interface__"):
        return _from_numpy(_as_numpy(array, array, argument), argument)
    reason = "; ".join(refusals) or "it has no buffer protocol, DLPack or __array_interface__"
    raise InvalidArgument(f"{argument}: cannot use {_describe(array)}: {reason}")


def _as_numpy(source: Any, array: Any, argument: str) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(source)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{argument}: cannot use {_describe(array)}: {error}") from error


_by_numpy: dict[np.dtype[Any], DType] = {}  # np.dtype.name is slow


def _from_numpy(array: np.ndarray[Any, Any], argument: str) -> Buffer:
    dtype = _by_numpy.get(array.dtype)
    if dtype is None:
        if not array.dtype.isnative:
            raise InvalidArgument(f"{argument}: dtype {array.dtype.str} has foreign byte order")
        dtype = _by_numpy[array.dtype] = dtypes.from_name(array.dtype.name, argument)
    flags = array.flags
    if not flags.c_contiguous:
        raise _not_contiguous(argument, array.shape, array.strides, "bytes")
    return Buffer(address(array), array.size, dtype, flags.writeable, array)


def _from_dlpack(memory: _dlpack.Memory, array: Any, argument: str) -> Buffer:
    dtype = dtypes.from_dlpack(memory.code, memory.bits, argument)
    count = math.prod(memory.shape)
    if memory.strides is not None and count > 0:
        expected = 1
        for extent, stride in zip(reversed(memory.shape), reversed(memory.strides), strict=True):
            if extent != 1 and stride != expected:
                raise _not_contiguous(argument, memory.shape, memory.strides, "elements")
            expected *= extent
    return Buffer(memory.address, count, dtype, memory.writable, (array, memory.owner))


def _not_contiguous(
    argument: str, shape: tuple[int, ...], strides: tuple[int, ...], unit: str
) -> InvalidArgument:
    return InvalidArgument(
        f"{argument}: shape {shape} with strides {strides} ({unit}) is not C-contiguous;"
        " pass a contiguous copy"
    )


def _describe(array: Any) -> str:
    cls = type(array)
    return f"{cls.__module__}.{cls.__qualname__}".removeprefix("builtins.")
