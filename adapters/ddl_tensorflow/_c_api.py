# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's C API for operations and kernels (tensorflow/c/ops.h, kernels.h), through ctypes."""

from __future__ import annotations

import _thread
import ctypes
import traceback
from collections.abc import Callable, Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

_P = c_void_p
_CREATE = ctypes.CFUNCTYPE(_P, _P)
_COMPUTE = ctypes.CFUNCTYPE(None, _P, _P)
# The type of the result, then those of the arguments.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "TF_NewStatus": (_P,),
    "TF_SetStatus": (None, _P, c_int, c_char_p),
    "TF_GetCode": (c_int, _P),
    "TF_Message": (c_char_p, _P),
    "TF_DeleteStatus": (None, _P),
    "TF_NewOpDefinitionBuilder": (_P, c_char_p),
    "TF_OpDefinitionBuilderAddAttr": (None, _P, c_char_p),
    "TF_OpDefinitionBuilderAddInput": (None, _P, c_char_p),
    "TF_OpDefinitionBuilderAddOutput": (None, _P, c_char_p),
    "TF_OpDefinitionBuilderSetIsStateful": (None, _P, ctypes.c_bool),
    "TF_OpDefinitionBuilderSetShapeInferenceFunction": (None, _P, _P),
    "TF_RegisterOpDefinition": (None, _P, _P),
    "TF_NewKernelBuilder": (_P, c_char_p, c_char_p, _CREATE, _COMPUTE, _P),
    "TF_RegisterKernelBuilder": (None, c_char_p, _P, _P),
    "TF_OpKernelConstruction_GetNodeDef": (_P, _P, _P),
    "TF_OpKernelConstruction_Failure": (None, _P, _P),
    "TF_DeleteBuffer": (None, _P),
    "TF_GetIterId": (c_int64, _P),
    "TF_NumInputs": (c_int, _P),
    "TF_GetInput": (None, _P, c_int, POINTER(_P), _P),
    "TF_AllocateOutput": (_P, _P, c_int, c_int, POINTER(c_int64), c_int, c_size_t, _P),
    "TF_ForwardInputOrAllocateOutput": (
        *(_P, _P, POINTER(c_int), c_int, c_int),
        *(POINTER(c_int64), c_int, POINTER(c_int), _P),
    ),
    "TF_OpKernelContext_Failure": (None, _P, _P),
    "TF_TensorType": (c_int, _P),
    "TF_NumDims": (c_int, _P),
    "TF_Dim": (c_int64, _P, c_int),
    "TF_TensorData": (_P, _P),
    "TF_TensorByteSize": (c_size_t, _P),
    "TF_DeleteTensor": (None, _P),
}
# OpDefBuilder::SetIsDistributedCommunication() is missing in the C API, whose builder is an
# OpDefBuilder. Without it TensorFlow turns an UnavailableError into an InternalError.
_SET_COMMUNICATION = "_ZN10tensorflow12OpDefBuilder29SetIsDistributedCommunicationEv"


class _Buffer(ctypes.Structure):
    """The beginning of a TF_Buffer."""

    _fields_ = (("data", _P), ("length", c_size_t))


def _load() -> ctypes.CDLL:
    (file,) = Path(tf.sysconfig.get_lib()).glob("libtensorflow_framework.so.?")
    library = ctypes.CDLL(str(file))
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


_tf = _load()
_kept: list[Any] = []  # objects to which TensorFlow keeps pointers


class _Status:
    """A TF_Status for one or several calls."""

    def __init__(self, code: int = 0, message: str = "") -> None:
        self._as_parameter_ = _tf.TF_NewStatus()
        if code:
            _tf.TF_SetStatus(self, code, message.encode())

    def __enter__(self) -> _Status:
        return self

    def __exit__(self, *raised: Any) -> None:
        _tf.TF_DeleteStatus(self)

    def check(self) -> None:
        """Raise the error of the last call, if any."""
        code = _tf.TF_GetCode(self)
        if code:
            message = _tf.TF_Message(self).decode(errors="replace")
            raise tf.compat.v1.errors.exception_type_from_error_code(code)(None, None, message)


class Context:
    """A run of a kernel: its inputs and outputs, as arrays in TensorFlow's memory."""

    def __init__(self, pointer: int) -> None:
        self._pointer = pointer
        self.inputs: int = _tf.TF_NumInputs(pointer)
        self.iteration: int = _tf.TF_GetIterId(pointer)  # the iteration of the innermost loop

    def input(self, index: int) -> np.ndarray:
        """Return an input, for reading only."""
        slot = _P()
        with _Status() as status:
            _tf.TF_GetInput(self._pointer, index, byref(slot), status)
            status.check()
        return _array(slot)

    def output(self, index: int, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """Allocate an output, and return it."""
        size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        with _Status() as status:
            tensor = _tf.TF_AllocateOutput(
                *(self._pointer, index, tf.as_dtype(dtype).as_datatype_enum),
                *(_numbers(shape), len(shape), size, status),
            )
            status.check()
        return _array(tensor)

    def forwarded(self, index: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Return an input and an output of its shape. If both use the same memory, return this
        memory and None."""
        send = self.input(index)
        forwarded = c_int(-1)
        with _Status() as status:
            tensor = _tf.TF_ForwardInputOrAllocateOutput(
                *(self._pointer, byref(c_int(index)), 1, index),
                *(_numbers(send.shape), send.ndim, byref(forwarded), status),
            )
            status.check()
        recv = _array(tensor)
        return (recv, None) if forwarded.value >= 0 else (send, recv)


def _numbers(numbers: Sequence[int]) -> Any:
    return (c_int64 * len(numbers))(*numbers)


def _array(tensor: Any) -> np.ndarray:
    """Return the tensor's memory as an array. Deletes the handle; the kernel's run keeps the
    memory."""
    shape = [_tf.TF_Dim(tensor, i) for i in range(_tf.TF_NumDims(tensor))]
    dtype = tf.as_dtype(_tf.TF_TensorType(tensor)).as_numpy_dtype
    address, size = _tf.TF_TensorData(tensor), _tf.TF_TensorByteSize(tensor)
    _tf.TF_DeleteTensor(tensor)
    if size == 0:
        return np.empty(shape, dtype)
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype).reshape(shape)


def register_operation(
    name: str, attributes: Sequence[str], inputs: Sequence[str], outputs: Sequence[str]
) -> None:
    """Register a stateful operation, with outputs of unknown shapes."""
    builder = _tf.TF_NewOpDefinitionBuilder(name.encode())
    for add, specifications in (
        (_tf.TF_OpDefinitionBuilderAddAttr, attributes),
        (_tf.TF_OpDefinitionBuilderAddInput, inputs),
        (_tf.TF_OpDefinitionBuilderAddOutput, outputs),
    ):
        for specification in specifications:
            add(builder, specification.encode())
    _tf.TF_OpDefinitionBuilderSetIsStateful(builder, True)
    unknown = ctypes.cast(_tf.TF_ShapeInferenceContextSetUnknownShape, _P)
    _tf.TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, unknown)
    set_communication = getattr(_tf, _SET_COMMUNICATION, None)
    if set_communication is not None:
        set_communication.restype = set_communication.argtypes = None
        set_communication(_P(builder))
    with _Status() as status:
        _tf.TF_RegisterOpDefinition(builder, status)
        status.check()


def register_kernel(
    name: str,
    make: Callable[[bytes], Any],
    run: Callable[[Context, Any], tuple[int, str] | None],
) -> None:
    """Register the kernel of an operation on CPU tensors.

    make   creates an argument of `run` from a node's definition (a serialized NodeDef); never freed
    run    returns None, or an error's code and message; called on any thread
    """
    made: dict[int, Any] = {}

    @_CREATE
    def create(construction: int) -> int | None:
        try:
            with _Status() as status:
                buffer = _tf.TF_OpKernelConstruction_GetNodeDef(construction, status)
                status.check()
            definition = ctypes.cast(buffer, POINTER(_Buffer)).contents
            node = make(ctypes.string_at(definition.data, definition.length))
            _tf.TF_DeleteBuffer(buffer)
        except Exception:
            with _Status(tf.errors.INTERNAL, traceback.format_exc()) as status:
                _tf.TF_OpKernelConstruction_Failure(construction, status)
            return None
        made[id(node)] = node
        return id(node)

    @_COMPUTE
    def compute(node: int, context: int) -> None:
        try:
            failure = run(Context(context), made[node])
        except tf.errors.OpError as error:
            failure = error.error_code, error.message
        except KeyboardInterrupt:  # would get lost here
            _thread.interrupt_main()
            failure = tf.errors.CANCELLED, "interrupted"
        except Exception:
            failure = tf.errors.INTERNAL, traceback.format_exc()
        if failure:
            with _Status(*failure) as status:
                _tf.TF_OpKernelContext_Failure(context, status)

    _kept.extend((create, compute))
    builder = _tf.TF_NewKernelBuilder(name.encode(), b"CPU", create, compute, None)
    with _Status() as status:
        _tf.TF_RegisterKernelBuilder(name.encode(), builder, status)
        status.check()
