# SPDX-License-Identifier: Apache-2.0
"""Arrays in the memory of a GPU, which is the stand-in of libddl/tests/cuda_standin, because no
framework can create any on it. The folder of its libcuda.so.1 must be in LD_LIBRARY_PATH."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ddl_core.calls import _dlpack

CUDA = 2  # DLPack's number for the device
NON_BLOCKING = 1
_driver = ctypes.CDLL("libcuda.so.1")
_HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new_capsule = ctypes.PyDLL(None).PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p


def cu(name: str, *arguments: Any) -> None:
    result = getattr(_driver, name)(*arguments)
    assert result == 0, f"{name} gives {result}"


def start(number: int = 0) -> None:
    """Select this GPU for this thread, or GPU modulo the number of GPUs."""
    context, count = ctypes.c_void_p(), ctypes.c_int()
    cu("cuInit", 0)
    cu("cuDeviceGetCount", ctypes.byref(count))
    cu("cuDevicePrimaryCtxRetain", ctypes.byref(context), number % count.value)
    cu("cuCtxSetCurrent", context)


class Stream:
    """A stream that does not wait for other streams."""

    def __init__(self) -> None:
        handle = ctypes.c_void_p()
        cu("cuStreamCreate", ctypes.byref(handle), NON_BLOCKING)
        assert handle.value
        self.handle = handle.value
        self._kept: list[Any] = []

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle

    def sleep(self, seconds: float) -> None:
        """Delay later work in the stream by this time."""
        function = _HOST_FUNCTION(lambda _: time.sleep(seconds))
        self._kept.append(function)
        cu("cuLaunchHostFunc", ctypes.c_void_p(self.handle), function, None)

    def synchronize(self) -> None:
        cu("cuStreamSynchronize", ctypes.c_void_p(self.handle))


class GpuArray:
    """An array with neither protocol. `stream` creates its contents; None: they are complete."""

    def __init__(self, values: np.ndarray[Any, Any], stream: Stream | None = None) -> None:
        self.shape, self.dtype, self.nbytes = values.shape, values.dtype, values.nbytes
        self.stream = stream
        self.address = ctypes.c_uint64(0)
        if self.nbytes:
            host = np.ascontiguousarray(values)
            cu("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(self.nbytes))
            cu("cuMemcpyHtoD_v2", self.address, host.ctypes.data_as(ctypes.c_void_p), *self._size)

    def __del__(self) -> None:
        if self.nbytes:
            cu("cuMemFree_v2", self.address)

    @property
    def _size(self) -> tuple[ctypes.c_size_t]:
        return (ctypes.c_size_t(self.nbytes),)

    def fill(self, word: int, stream: Stream) -> None:
        """Set each 4 bytes to `word`, in the stream."""
        count = ctypes.c_size_t(self.nbytes // 4)
        handle = ctypes.c_void_p(stream.handle)
        cu("cuMemsetD32Async", self.address, ctypes.c_uint(word), count, handle)

    def read(self) -> np.ndarray[Any, Any]:
        """Return a copy on the host."""
        host = np.empty(self.shape, self.dtype)
        if self.nbytes:
            cu("cuMemcpyDtoH_v2", host.ctypes.data_as(ctypes.c_void_p), self.address, *self._size)
        return host

    def read_in(self, stream: Stream) -> np.ndarray[Any, Any]:
        """Return a copy on the host, through the stream, and wait for it."""
        host = np.empty(self.shape, self.dtype)
        handle = ctypes.c_void_p(stream.handle)
        target = host.ctypes.data_as(ctypes.c_void_p)
        cu("cuMemcpyDtoHAsync_v2", target, self.address, *self._size, handle)
        stream.synchronize()
        return host


class CudaInterfaceArray(GpuArray):
    """An array with `__cuda_array_interface__`, like Numba's arrays."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        described = {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address.value, False),
            "strides": None,
            "stream": self.stream.handle if self.stream else None,
        }
        return described | getattr(self, "changes", {})


_CODES = {"b": 6, "i": 0, "u": 1, "f": 2, "c": 5, "V": 4}  # of DLPack; V: bfloat16 of ml_dtypes


class DLPackArray(GpuArray):
    """An array with DLPack, like the arrays of CuPy and PyTorch."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, 0

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        assert stream not in (None, 0), "a consumer on CUDA gives a stream, and 0 is ambiguous"
        if stream != -1 and self.stream is not None:
            self._let_wait(stream)
        memory = _dlpack._Managed()
        self._shape = (ctypes.c_int64 * len(self.shape))(*self.shape)
        tensor = memory.tensor
        tensor.data = self.address.value
        tensor.device.type, tensor.device.id = CUDA, 0
        tensor.ndim, tensor.shape = len(self.shape), self._shape
        tensor.dtype.code = _CODES[self.dtype.kind]
        tensor.dtype.bits, tensor.dtype.lanes = 8 * self.dtype.itemsize, 1
        self._managed = memory
        return _new_capsule(ctypes.addressof(memory), b"dltensor", None)

    def _let_wait(self, stream: int | None) -> None:
        event = ctypes.c_void_p()
        assert self.stream is not None
        cu("cuEventCreate", ctypes.byref(event), 2)
        cu("cuEventRecord", event, ctypes.c_void_p(self.stream.handle))
        cu("cuStreamWaitEvent", ctypes.c_void_p(stream), event, 0)
        cu("cuEventDestroy_v2", event)


Make = Callable[[np.ndarray[Any, Any]], Any]
