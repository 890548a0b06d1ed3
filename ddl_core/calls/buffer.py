# SPDX-License-Identifier: Apache-2.0
"""Access to the memory of any array, without a copy and without importing a framework.

An adapter that knows the memory passes a Buffer. Other arrays are tried in this order: NumPy arrays
(including bfloat16, which does not support the buffer protocol), the buffer protocol (bytearray,
array.array, memoryview, ...), DLPack (PyTorch, JAX, CuPy, ...), and `__array_interface__`, or for
GPU memory `__cuda_array_interface__` (Numba, ...).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddl_core.base._lib import address
from ddl_core.calls import _dlpack, dtypes
from ddl_core.calls.dtypes import DType
from ddl_core.calls.gpu import Contents
from ddl_core.errors import InvalidArgument


@dataclass(slots=True)
class Buffer:
    """C-contiguous memory: `count` elements of `dtype` at `address`, kept alive by `owner`. It is
    on a GPU if it has `contents`, else on the host."""

    address: int
    count: int
    dtype: DType
    writable: bool
    owner: object
    contents: Contents | None = None


def as_buffer(array: Any, argument: str, *, write: bool = False) -> Buffer:
    """Return the memory of `array`.

    argument   the name of the array in messages
    write      True if the memory will be written

    Raises InvalidArgument if `array` is not an array, is neither in host memory nor on an NVIDIA
    GPU, has an element type that libddl does not support, is not C-contiguous, or is read-only
    although `write` is set.
    """
    if isinstance(array, Buffer):
        found = array
    elif isinstance(array, np.ndarray):
        found = _from_numpy(array, argument)
    else:
        found = _find(array, argument)
    if write and not found.writable:
        raise InvalidArgument(
            f"{argument}: {_describe(array)} is read-only, but the operation writes to it"
        )
    return found


def _find(array: Any, argument: str) -> Buffer:
    refusals = []
    try:
        view = memoryview(array)
    except TypeError:
        pass  # no buffer protocol
    except (BufferError, ValueError) as error:  # not for this array
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
    if hasattr(array, "__cuda_array_interface__"):
        return _from_cuda(array.__cuda_array_interface__, array, argument)
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
            raise InvalidArgument(
                f"{argument} has dtype {array.dtype.str} of foreign byte order; convert it first"
            )
        dtype = _by_numpy[array.dtype] = dtypes.from_name(array.dtype.name, argument)
    flags = array.flags
    if not flags.c_contiguous:
        raise _not_contiguous(argument, array.shape, array.strides, "bytes")
    return Buffer(address(array), array.size, dtype, flags.writeable, array)


def _from_dlpack(memory: _dlpack.Memory, array: Any, argument: str) -> Buffer:
    dtype = dtypes.from_dlpack(memory.code, memory.bits, argument)
    count = math.prod(memory.shape)
    if memory.strides is not None and not _is_compact(memory.shape, memory.strides, 1):
        raise _not_contiguous(argument, memory.shape, memory.strides, "elements")
    contents = Contents(memory.let_wait) if memory.let_wait else None
    writable = memory.writable and not _is_immutable(array)
    return Buffer(memory.address, count, dtype, writable, (array, memory.owner), contents)


def _is_immutable(array: Any) -> bool:
    """Return True for JAX arrays. They are immutable, but their exports do not say so."""
    return type(array).__module__.startswith(("jax.", "jaxlib."))


def _from_cuda(interface: dict[str, Any], array: Any, argument: str) -> Buffer:
    """Return the memory that `__cuda_array_interface__` describes, in version 3 or in an older
    version, which has no stream."""
    kind = np.dtype(interface["typestr"])
    if not kind.isnative:
        raise InvalidArgument(
            f"{argument} has dtype {kind.str} of foreign byte order; convert it first"
        )
    if interface.get("mask") is not None:
        raise InvalidArgument(f"{argument}: cannot use {_describe(array)}: it has a mask")
    shape, strides = tuple(interface["shape"]), interface.get("strides")
    count, (start, is_read_only) = math.prod(shape), interface["data"]
    if strides is not None and not _is_compact(shape, strides, kind.itemsize):
        raise _not_contiguous(argument, shape, tuple(strides), "bytes")
    dtype = dtypes.from_name(kind.name, argument)
    contents = Contents(stream=interface.get("stream"))
    return Buffer(start or 0, count, dtype, not is_read_only, array, contents)


def _is_compact(shape: Sequence[int], strides: Sequence[int], unit: int) -> bool:
    """Return True if the elements follow each other in C order. `unit` is the distance between
    neighbouring elements, in the unit of the strides."""
    if math.prod(shape) == 0:
        return True
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent != 1 and stride != unit:
            return False
        unit *= extent
    return True


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
