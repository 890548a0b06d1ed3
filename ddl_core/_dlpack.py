# SPDX-License-Identifier: Apache-2.0
"""Reads a DLPack capsule, as far as needed to find a CPU tensor's memory.

NumPy's reader does not know bfloat16. The capsule is read, not consumed: it owns the tensor until
it is collected, so the user of the memory keeps the capsule.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

_CPU = 1
_READ_ONLY, _IS_COPIED = 1, 2


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):  # capsule "dltensor"; a context and a deleter follow
    _fields_ = (("tensor", _Tensor),)


class _ManagedVersioned(ctypes.Structure):  # capsule "dltensor_versioned"
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_python = ctypes.PyDLL(None)  # not ctypes.pythonapi, whose prototypes all modules share
_get_name = _python.PyCapsule_GetName
_get_name.restype, _get_name.argtypes = ctypes.c_char_p, (ctypes.py_object,)
_get_pointer = _python.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


@dataclass(frozen=True)
class Memory:
    """The memory of a tensor. `owner` keeps it alive; strides are in elements, None if compact."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    code: int
    bits: int
    writable: bool
    owner: object


def read(source: Any) -> Memory:
    """The memory of `source`, which has `__dlpack__` and `__dlpack_device__`.

    Raises BufferError if it is not in host memory, or `source` does not export it.
    """
    device, number = source.__dlpack_device__()
    if device != _CPU:
        raise BufferError(f"lies on DLPack device type {int(device)}:{number}, not in host memory")
    try:
        capsule = source.__dlpack__(max_version=(1, 0))
    except TypeError:  # made before DLPack 1.0
        capsule = source.__dlpack__()
    name: bytes = _get_name(capsule)
    pointer = _get_pointer(capsule, name)
    flags = 0
    if name == b"dltensor_versioned":
        versioned = _ManagedVersioned.from_address(pointer)
        if versioned.major != 1:
            raise BufferError(f"speaks DLPack {versioned.major}.{versioned.minor}, not 1")
        tensor, flags = versioned.tensor, versioned.flags
    elif name == b"dltensor":
        tensor = _Managed.from_address(pointer).tensor
    else:
        raise BufferError(f"gives a DLPack capsule named {name!r}")
    if tensor.dtype.lanes != 1:
        raise BufferError(f"has elements of {tensor.dtype.lanes} lanes")
    return Memory(
        address=(tensor.data or 0) + tensor.byte_offset,
        shape=tuple(tensor.shape[: tensor.ndim]),
        strides=tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None,
        code=tensor.dtype.code,
        bits=tensor.dtype.bits,
        writable=not flags & (_READ_ONLY | _IS_COPIED),
        owner=capsule,
    )
