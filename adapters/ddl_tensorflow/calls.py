# SPDX-License-Identifier: Apache-2.0
"""Operations of a graph that Python functions perform, for adapters built on this one.

The native part holds no thread of TensorFlow while such an operation waits. So all operations of a
graph can wait at once, in any number and order.
"""

from __future__ import annotations

import ctypes
import threading
import traceback
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from ctypes import POINTER, c_char_p, c_int, c_int64, c_void_p
from typing import Any

import numpy as np
import tensorflow as tf

Array = np.ndarray[Any, Any]
# Starts an operation with this name and these inputs, which stay valid until the result is there.
Function = Callable[[str, list[Array]], Future[list[Array]]]

_MOST_DIMENSIONS = 254  # the most dimensions of a tensor

_lock = threading.Lock()  # protects both
_functions: list[Function] = []
_numbers: dict[Hashable, int] = {}


def call(
    function: Function, name: str, inputs: Sequence[tf.Tensor], outputs: Sequence[Any]
) -> list[tf.Tensor]:
    """Add an operation to the graph. Whenever the operation runs, it calls `function`.

    function  kept until the process exits; equal functions are kept once. If it or its result
              raises an error, TensorFlow raises an error; an OpError keeps its class
    name      passed to the function, with a suffix in each iteration of a loop
    outputs   the types and shapes of the results
    """
    from ddl_tensorflow import _build

    with _lock:
        number = _numbers.setdefault(function, len(_functions))
        if number == len(_functions):
            _functions.append(function)
    results = _build.load().operations.ddl_python(
        inputs=list(inputs), Tout=[each.dtype for each in outputs], call=number, tensor_name=name
    )
    for result, output in zip(results, outputs, strict=True):
        result.set_shape(output.shape)
    return list(results)


def start(number: int, name: str, inputs: list[Array]) -> Future[list[Array]]:
    """Start the operation of the function with this number."""
    try:
        return _functions[number](name, inputs)
    except Exception as error:
        failed: Future[list[Array]] = Future()
        failed.set_exception(error)
        return failed


def failure(error: BaseException) -> tuple[int, str]:
    """Return the code and the message of TensorFlow's error."""
    if isinstance(error, tf.errors.OpError):
        return error.error_code, error.message
    return tf.errors.UNKNOWN, "".join(traceback.format_exception(error))


def serve(library: ctypes.CDLL) -> Any:
    """Perform the native part's operations. Return an object that must live as long as the
    library."""
    library.ddl_tensorflow_input.argtypes = [
        *(c_void_p, c_int, POINTER(c_int), POINTER(c_int), POINTER(c_int64))
    ]
    library.ddl_tensorflow_output.argtypes = [c_void_p, c_int, c_int, POINTER(c_int64)]
    library.ddl_tensorflow_finish.argtypes = [c_void_p, c_int, c_char_p]
    library.ddl_tensorflow_input.restype = library.ddl_tensorflow_output.restype = c_void_p
    library.ddl_tensorflow_finish.restype = library.ddl_tensorflow_set_python.restype = None

    def read(request: int, index: int) -> Array:
        kind, dimensions, sizes = c_int(), c_int(), (c_int64 * _MOST_DIMENSIONS)()
        address = library.ddl_tensorflow_input(request, index, kind, dimensions, sizes)
        return _view(address, sizes[: dimensions.value], tf.as_dtype(kind.value).as_numpy_dtype)

    def write(request: int, index: int, result: Array) -> None:
        sizes = (c_int64 * result.ndim)(*result.shape)
        address = library.ddl_tensorflow_output(request, index, result.ndim, sizes)
        if address or not result.size:
            _view(address, result.shape, result.dtype)[...] = result

    def finish(request: int, done: Future[list[Array]]) -> None:
        code, message = 0, ""
        try:
            for index, result in enumerate(done.result()):
                write(request, index, result)
        except BaseException as error:
            code, message = failure(error)
        library.ddl_tensorflow_finish(request, code, message.encode())

    @ctypes.CFUNCTYPE(None, c_void_p, c_int64, c_char_p, c_int)
    def begin(request: int, number: int, name: bytes, inputs: int) -> None:
        own = [read(request, index) for index in range(inputs)]
        start(number, name.decode(), own).add_done_callback(lambda done: finish(request, done))

    library.ddl_tensorflow_set_python(begin)
    return begin


def _view(address: int | None, shape: Sequence[int], dtype: Any) -> Array:
    size = np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
    if not size:
        return np.empty(shape, dtype)
    assert address is not None
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype).reshape(shape)
