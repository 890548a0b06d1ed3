# SPDX-License-Identifier: Apache-2.0
"""One rank: all operations on arrays on a GPU, compared bit by bit with the host's, and their
streams. The GPU is a stand-in."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import standin_arrays
from standin_arrays import CudaInterfaceArray, DLPackArray, GpuArray, Make, Stream

import ddl_core

COUNTS = (0, 3, 5000)
LARGE = 600_000  # sent in several chunks
DTYPES = [np.dtype(name) for name in ("bool", "int32", "float32", "float64", "complex64")]
DTYPES.append(np.dtype(ml_dtypes.bfloat16))
LONG_S = 0.05

comm = ddl_core.init(ddl_core.Config(operation_timeout=30))
rank, size = comm.rank, comm.size
standin_arrays.start(comm.rank)


def values(count: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return this rank's input: floats whose sum depends on the order of the ranks."""
    draw = np.random.default_rng(rank)
    return draw.uniform(-1 if dtype.kind != "b" else 0, 1, count).astype(dtype)


def uneven(count: int) -> list[int]:
    return [count if r % 2 == 0 else count // 3 for r in range(size)]


def run_all(count: int, dtype: np.dtype[Any], make: Make) -> list[Any]:
    """Return the result of each operation."""
    counts = uneven(count)
    own, total = counts[rank], sum(counts)
    op = "logical_or" if dtype.kind == "b" else "sum"

    def new(n: int) -> Any:
        return make(np.zeros(n, dtype))

    def given(n: int) -> Any:
        return make(values(n, dtype))

    order = comm.order([v % size for v in range(2 * size)])
    results = [
        comm.allreduce(given(count), new(count), op=op),
        comm.allreduce(given(count), op=op),
        comm.reduce(given(count), new(count), op=op, root=size - 1),
        comm.reduce_scatter(given(size * count), new(count), op=op),
        comm.reduce_scatterv(given(total), new(own), counts=counts, op=op),
        comm.broadcast(given(count), root=size - 1),
        comm.allgather(given(count), new(size * count)),
        comm.allgatherv(given(own), new(total), counts=counts),
        comm.gather(given(count), new(size * count)),
        comm.gatherv(given(own), new(total), counts=counts),
        comm.scatter(given(size * count) if rank == 0 else None, new(count)),
        comm.scatterv(given(total) if rank == 0 else None, new(own), counts=counts),
        comm.alltoall(given(size * count), new(size * count)),
        comm.allreduce_async(given(count), op=op).wait(),
    ]
    if dtype.kind in "ifc":
        parts = [given(count) for _ in order.parts(rank)]
        results.append(comm.allreduce_ordered(order, parts, new(count)))
    return results


def host_copy(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.copy()


def compare(make: Make, count: int, dtype: np.dtype[Any]) -> int:
    compared = 0
    on_host, on_gpu = run_all(count, dtype, host_copy), run_all(count, dtype, make)
    for index, (expected, found) in enumerate(zip(on_host, on_gpu, strict=True)):
        assert (expected is None) == (found is None), index
        if expected is not None:
            assert found.read().tobytes() == expected.tobytes(), (index, count, dtype)
            compared += 1
    return compared


def check_given_stream(wrap: Callable[[Stream], Any]) -> None:
    """The operation starts after the work in the stream, and work that is queued after it sees the
    result, though the host does not wait."""
    stream = Stream()
    array = CudaInterfaceArray(np.zeros(5000, np.uint32))
    stream.sleep(LONG_S)
    array.fill(rank + 1, stream)
    work = comm.allreduce_async(array, stream=wrap(stream))
    found = array.read_in(stream)
    assert (found == size * (size + 1) // 2).all(), found
    work.wait()


def check_stream_of_arrays(make: Callable[..., GpuArray]) -> None:
    """Without a stream, the operation waits for the stream that creates the contents."""
    stream = Stream()
    array = make(np.zeros(5000, np.uint32), stream)
    stream.sleep(LONG_S)
    array.fill(rank + 1, stream)
    comm.allreduce(array)
    assert (array.read() == size * (size + 1) // 2).all(), array.read()


def check_group(make: Callable[..., GpuArray]) -> None:
    stream = Stream()
    arrays = [make(np.zeros(5000, np.uint32)) for _ in range(12)]
    group = comm.group()
    for array in arrays:
        group.allreduce(array)
    for step in range(2):
        stream.sleep(LONG_S)
        for array in arrays:
            array.fill(rank + step, stream)
        work = group.submit_async(stream=stream)
        for array in arrays:
            found = array.read_in(stream)
            assert (found == size * step + size * (size - 1) // 2).all(), found
        work.wait()


class OfPyTorch:
    def __init__(self, stream: Stream) -> None:
        self.cuda_stream = stream.handle


class OfCuPy:
    def __init__(self, stream: Stream) -> None:
        self.ptr = stream.handle


compared = compare(DLPackArray, LARGE, np.dtype("float32"))
for count in COUNTS:
    for dtype in DTYPES:
        compared += compare(DLPackArray, count, dtype)
        if dtype.kind != "V":  # the interface lacks it
            compared += compare(CudaInterfaceArray, count, dtype)
for wrap in (lambda stream: stream, lambda stream: stream.handle, OfPyTorch, OfCuPy):
    check_given_stream(wrap)
check_stream_of_arrays(DLPackArray)
check_stream_of_arrays(CudaInterfaceArray)
check_group(DLPackArray)
check_group(CudaInterfaceArray)
print(f"compared {compared}")
