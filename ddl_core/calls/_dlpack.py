# SPDX-License-Identifier: Apache-2.0
"""A reader of DLPack capsules that finds the memory of a tensor.

NumPy's reader does not support bfloat16. Reading does not consume the capsule. The capsule owns the
tensor until it is garbage-collected, so the user of the memory keeps a reference to the capsule.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_CPU, _CUDA = 1, 2
_NO_STREAM = -1  # no stream has to wait for the contents
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
    """The memory of a tensor.

    strides   in elements; None if the tensor is compact
    owner     keeps the memory alive
    let_wait  makes a stream wait for the tensor's contents, `let_wait(stream)`; None on the host
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    code: int
    bits: int
    writable: bool
    owner: object
    let_wait: Callable[[int], object] | None


def read(source: Any) -> Memory:
    """Return the memory of `source`, which has `__dlpack__` and `__dlpack_device__`.

    Raises BufferError if the memory is neither on the host nor on a CUDA device, or if `source`
    does not export it.
    """
    device, number = source.__dlpack_device__()
    if device not in (_CPU, _CUDA):
        raise BufferError(
            f"it is on DLPack device type {int(device)}:{number}, neither in host memory nor on a"
            " CUDA device"
        )
    on_gpu = device == _CUDA
    capsule = _export(source, _NO_STREAM) if on_gpu else _export(source)
    name: bytes = _get_name(capsule)
    pointer = _get_pointer(capsule, name)
    flags = 0
    if name == b"dltensor_versioned":
        versioned = _ManagedVersioned.from_address(pointer)
        if versioned.major != 1:
            raise BufferError(
                f"it uses DLPack {versioned.major}.{versioned.minor}, but libddl needs version 1"
            )
        tensor, flags = versioned.tensor, versioned.flags
    elif name == b"dltensor":
        tensor = _Managed.from_address(pointer).tensor
    else:
        raise BufferError(f"it returned a DLPack capsule with the unknown name {name!r}")
    if tensor.dtype.lanes != 1:
        raise BufferError(f"its elements have {tensor.dtype.lanes} lanes; must have 1")
    return Memory(
        address=(tensor.data or 0) + tensor.byte_offset,
        shape=tuple(tensor.shape[: tensor.ndim]),
        strides=tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None,
        code=tensor.dtype.code,
        bits=tensor.dtype.bits,
        writable=not flags & (_READ_ONLY | _IS_COPIED),
        owner=capsule,
        let_wait=(lambda stream: _export(source, stream)) if on_gpu else None,
    )


def _export(source: Any, stream: int | None = None) -> Any:
    """Return a capsule of `source`. A given stream waits for the contents."""
    given = {} if stream is None else {"stream": stream}
    try:
        return source.__dlpack__(max_version=(1, 0), **given)
    except TypeError:  # an exporter from before DLPack 1.0
        return source.__dlpack__(**given)
