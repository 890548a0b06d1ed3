# SPDX-License-Identifier: Apache-2.0
"""One rank: the handler of ddl_jax, called like XLA calls it, on arrays on a GPU."""

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import standin_arrays
from standin_arrays import GpuArray, Stream

import ddl_jax
from ddl_core.calls.arguments import OPS
from ddl_jax import _build

TOKEN = 17  # as in XLA's header, like the next two
TYPES = {"float32": 11, "float64": 12, "int32": 4, "bool": 1, "bfloat16": 16, "complex64": 15}
FAILED_PRECONDITION, UNIMPLEMENTED, INTERNAL = 9, 12, 13
COUNTS = (0, 3, 5000, 600_000)  # the last one takes several chunks
LONG_S = 0.05


class Array(ctypes.Structure):
    _fields_ = (("data", ctypes.c_uint64), ("count", ctypes.c_int64), ("type", ctypes.c_int64))


class Number(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("value", ctypes.c_int64))


ddl_jax.init()
rank, size = ddl_jax.rank(), ddl_jax.size()
frames = ctypes.CDLL(sys.argv[1])
handler = ctypes.cast(_build.handler().ddl_jax_call_cuda, ctypes.c_void_p)
standin_arrays.start(rank)
stream = Stream()


def on_gpu(contents: np.ndarray[Any, Any]) -> GpuArray:
    array = GpuArray(contents)
    standin_arrays.cu("cuStreamSynchronize", None)  # the default stream, in which the copy runs
    return array


def described(arrays: Sequence[GpuArray]) -> Any:
    each = [Array(a.address.value, a.shape[0], TYPES[a.dtype.name]) for a in arrays]
    return (Array * (len(each) + 1))(*each, Array(0, 0, TOKEN))


def call(
    kind: str, given: Sequence[GpuArray], results: Sequence[GpuArray], **numbers: int
) -> tuple[int, str]:
    """Return the error that XLA would get: its code, or 0, and its text."""
    numbers = {"size": size, **numbers}
    values = (Number * len(numbers))(*(Number(n.encode(), v) for n, v in numbers.items()))
    text = ctypes.c_char_p()
    code = frames.frames_call(
        *(handler, ctypes.c_void_p(stream.handle), kind.encode(), values, len(numbers)),
        *(described(given), len(given) + 1, described(results), len(results) + 1),
        ctypes.byref(text),
    )
    return code, (text.value or b"").decode()


def values(count: int, dtype: np.dtype[Any], of: int = rank) -> np.ndarray[Any, Any]:
    """Return a rank's input, whose sums are exact."""
    return (np.arange(count) % 7 + of).astype(dtype)


def total(count: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    every = [values(count, dtype, of) for of in range(size)]
    return np.logical_or.reduce(every) if dtype.kind == "b" else np.add.reduce(every, dtype=dtype)


def expect(kind: str, given: Any, expected: np.ndarray[Any, Any], **numbers: int) -> None:
    array, result = on_gpu(given), on_gpu(np.zeros_like(expected))
    if kind == "broadcast":
        result = array  # as in the lowering
    operands = [array, result] if kind == "reduce" else [array]
    assert call(kind, operands, [result], **numbers) == (0, "")
    assert result.read().tobytes() == expected.tobytes(), (kind, expected.dtype, expected.shape)


def compare(count: int, dtype: np.dtype[Any]) -> None:
    op = OPS["logical_or" if dtype.kind == "b" else "sum"]
    own, whole = values(count, dtype), values(size * count, dtype)
    block = slice(rank * count, (rank + 1) * count)
    every = [values(count, dtype, of) for of in range(size)]
    expect("allreduce", own, total(count, dtype), op=op)
    expect("broadcast", own, values(count, dtype, size - 1), root=size - 1)
    expect("allgather", own, np.concatenate(every))
    expect("reduce_scatter", whole, total(size * count, dtype)[block], op=op)
    blocks = [values(size * count, dtype, of)[block] for of in range(size)]
    expect("alltoall", whole, np.concatenate(blocks))
    if dtype.kind != "b":
        zeros = np.zeros(count, dtype)
        expect("reduce", own, total(count, dtype) if rank == 0 else zeros, root=0)


def check_group() -> None:
    arrays = [on_gpu(np.zeros(n, np.uint32)) for n in (8, 5000, 300_000)]
    for array in arrays:
        array.dtype = np.dtype("int32")
    stream.sleep(LONG_S)
    for array in arrays:
        array.fill(rank + 1, stream)
    assert call("allreduce", arrays, arrays, op=OPS["sum"]) == (0, "")
    for array in arrays:
        assert (array.read_in(stream) == size * (size + 1) // 2).all()


def check_errors() -> None:
    array = on_gpu(np.zeros(4, np.float32))
    code, text = call("send", [array], [], dest=0, send_tag=1)
    assert code == UNIMPLEMENTED and "which messages do not support" in text, (code, text)
    code, text = call("allreduce", [array], [array], op=OPS["sum"], size=size + 1)
    assert code == FAILED_PRECONDITION and f"{size + 1} ranks" in text, (code, text)
    for kind in "broadcast", "reduce":
        code, text = call(kind, [array, array], [on_gpu(np.zeros(4, np.float32))], root=0)
        assert code == INTERNAL and "the memory of an operand" in text, (code, text)
    if size > 1:
        code, text = call("allreduce", [array], [array], op=OPS["max" if rank else "sum"])
        assert code == FAILED_PRECONDITION and "rank" in text, (code, text)


for name in "bool", "int32", "float32", "float64", "complex64":
    for count in COUNTS[:3]:
        compare(count, np.dtype(name))
compare(COUNTS[3], np.dtype("float32"))
compare(COUNTS[2], np.dtype(ml_dtypes.bfloat16))
check_group()
assert call("barrier", [], []) == (0, "")
check_errors()
ddl_jax.shutdown()
print("compared")
