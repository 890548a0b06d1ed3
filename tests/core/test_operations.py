# SPDX-License-Identifier: Apache-2.0
"""The Python side of operations: results, options, errors. tests/matrix tests what they compute."""

import gc
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ranks import LIMIT, together

from ddl_core import Comm, Endpoint
from ddl_core.calls.buffer import as_buffer
from ddl_core.errors import DdlError, InvalidArgument, InvalidState, Mismatch, TimedOut

pytestmark = pytest.mark.pure

Pair = tuple[Comm, Comm]


def f4(*values: float) -> np.ndarray[Any, Any]:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c, a: c.reduce(a, root=2), "root is 2; must be from 0 to 1"),
        (lambda c, a: c.reduce(a, a[:3].copy()), "recv has 3 elements; must have 4: like send"),
        (lambda c, a: c.reduce(bytes(4)), "send: bytes is read-only"),
        (lambda c, a: c.gather(a, a.copy()), "recv has 4 elements; must have 8: 2 blocks like"),
        (lambda c, a: c.gather(a[:3]), "send has 3 elements, which cannot be divided into 2"),
        (lambda c, a: c.scatter(a, a.copy()), "send has 4 elements; must have 8: 2 blocks like"),
        (lambda c, a: c.scatter(a[:3]), "send has 3 elements, which cannot be divided into 2"),
        (lambda c, a: c.scatter(None, a), "send: cannot use NoneType"),
        (lambda c, a: c.scatter(None, root=1), "recv: cannot use NoneType"),
        (lambda c, a: c.alltoall(a[:3]), "send has 3 elements, which cannot be divided into 2"),
        (lambda c, a: c.alltoall(a, a[:2].copy()), "recv has 2 elements; must have 4: like send"),
        (
            lambda c, a: c.allgatherv(a, counts=[1]),
            "counts has 1 entries; must have 2, one for each",
        ),
        (lambda c, a: c.allgatherv(a, counts=7), "counts is 7; must be a sequence of integers"),
        (lambda c, a: c.allgatherv(a, counts=[4, -1]), "counts.1. is -1; must be from 0"),
        (lambda c, a: c.allgatherv(a, counts=[4, 1.5]), "counts.1. is 1.5; must be an integer"),
        (lambda c, a: c.allgatherv(a, counts=[4, 1]), "send has 4 elements; must have 5: the sum"),
        (lambda c, a: c.allgatherv(a, a.copy(), counts=[3, 1]), "send has 4 .*must have 3: counts"),
        (
            lambda c, a: c.allgatherv(a, counts=[1, 2], displs=[0, 3]),
            "send has 4 elements, but the blocks end at element 5",
        ),
        (lambda c, a: c.reduce_scatterv(a, counts=[1, 2]), "send has 4 elements; must have 3"),
        (lambda c, a: c.reduce_scatterv(a, a[:1].copy(), counts=[2, 2]), "recv has 1 .*counts.0."),
        (lambda c, a: c.gatherv(a), "counts is None; must be a sequence"),
        (lambda c, a: c.scatterv(a, a[:1].copy(), counts=[2, 2]), "recv has 1 .*have 2: counts"),
        (lambda c, a: c.scatterv(a, counts=[2, 3]), "send has 4 elements; must have 5"),
        (lambda c, a: c.alltoallv(a, send_counts=[2, 3]), "send has 4 .*the sum of send_counts"),
        (
            lambda c, a: c.alltoallv(a, a.copy(), send_counts=[2, 2], recv_counts=[1, 2]),
            "recv has 4 elements; must have 3: the sum of recv_counts",
        ),
        (
            lambda c, a: c.alltoallv(a, a.copy(), send_counts=[2, 2]),
            "recv_counts is None; must be a seq",
        ),
        (lambda c, a: c.send(a, 2), "dest is 2; must be from 0 to 1"),
        (lambda c, a: c.send(a, 1, tag=-1), "tag is -1; must be from 0"),
        (lambda c, a: c.recv(a, 2), "source is 2; must be from 0 to 1"),
        (lambda c, a: c.recv(a, -1), "source is -1; must be from 0 to 1"),
        (lambda c, a: c.recv(bytes(4)), "array: bytes is read-only"),
        (lambda c, a: c.sendrecv(a, None, dest=1, source=1), "recv is None, but a sendrecv"),
        (
            lambda c, a: c.sendrecv(a, a.astype("f8"), dest=1, source=1),
            "recv has dtype float64, but",
        ),
        (lambda c, a: c.allreduce(a, name=""), "name is ..; must be a str"),
        (lambda c, a: c.allreduce(a, name="a\0b"), "name is .*; must be a str"),
        (lambda c, a: c.allreduce(a, name=7), "name is 7; must be a str"),
        (lambda c, a: c.allreduce(a, name="n" * 256), "name"),
        (
            lambda c, a: c.allreduce(a, prescale=0),
            "prescale is 0, which would make all results zero",
        ),
        (lambda c, a: c.allreduce(a, postscale="x"), "postscale is 'x'; must be a number"),
        (lambda c, a: c.allreduce(a.astype("i4"), prescale=2.0), "scale"),
        (lambda c, a: c.allreduce(a, op="bit_and"), "f32"),
        (lambda c, a: c.allreduce(a > 0, op="average"), "bool"),
        (lambda c, a: c.allreduce(a.astype("c8"), op="max"), "c64"),
        (lambda c, a: c.split(-1), "color is -1; must be from 0"),
        (lambda c, a: c.subset([0, 2]), "ranks.1. is 2; must be from 0 to 1"),
        (lambda c, a: c.completed(0), "limit is 0; must be from 1"),
        (lambda c, a: c.completed(timeout=-1), "timeout is -1"),
    ],
)
def test_refused_calls_change_nothing(
    pair: Pair, call: Callable[[Comm, Any], Any], message: str
) -> None:
    array = f4(0, 1, 2, 3)
    with pytest.raises(DdlError, match=message):
        call(pair[0], array)
    assert array.tolist() == [0, 1, 2, 3]
    assert pair[0].error is None


def test_unknown_options_are_refused_as_by_any_function(alone: Comm) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'tineout'"):
        alone.allreduce(f4(1), tineout=1)  # type: ignore[call-arg]


def test_only_the_root_gets_a_result(pair: Pair) -> None:
    arrays = [f4(1, 2), f4(10, 20)]
    results = together(lambda r: pair[r].reduce(arrays[r], root=1), 2)
    assert results[0] is None
    assert results[1] is arrays[1]
    assert [a.tolist() for a in arrays] == [[1, 2], [11, 22]]
    recv = np.zeros(4, np.float32)
    results = together(lambda r: pair[r].gather(arrays[r], None if r else recv), 2)
    assert results[0] is recv
    assert results[1] is None
    assert recv.tolist() == [1, 2, 11, 22]


def test_non_roots_may_give_read_only_memory(pair: Pair) -> None:
    data = [bytearray(b"\1\2"), b"\3\4"]
    together(lambda r: pair[r].reduce(data[r]), 2)
    assert data == [bytearray(b"\4\6"), b"\3\4"]


def test_scatter_gives_each_rank_its_block(pair: Pair) -> None:
    whole, part = f4(1, 2, 3, 4), f4(0, 0)
    send, recv = (whole, None), (None, part)
    results = together(lambda r: pair[r].scatter(send[r], recv[r]), 2)
    assert results[0] is whole
    assert results[1] is part
    assert part.tolist() == [3, 4]
    three = f4(0, 0, 0)
    counts = [[1, 3], None]
    together(lambda r: pair[r].scatterv(send[r], (None, three)[r], counts=counts[r]), 2)
    assert three.tolist() == [2, 3, 4]


def test_counts_may_be_any_integers(pair: Pair) -> None:
    arrays = [f4(1, 0, 0), f4(0, 2, 3)]
    together(lambda r: pair[r].allgatherv(arrays[r], counts=np.array([1, 2])), 2)
    assert [a.tolist() for a in arrays] == [[1, 2, 3]] * 2


def test_scaling(pair: Pair) -> None:
    arrays = [f4(1, 2), f4(10, 20)]
    scales = (2.0, 0.5)
    together(lambda r: pair[r].allreduce(arrays[r], prescale=scales[r], postscale=10), 2)
    assert [a.tolist() for a in arrays] == [[70, 140]] * 2


def test_complex_numbers(pair: Pair) -> None:
    arrays = [np.array([1 + 2j, 3j]), np.array([1j, 4])]
    together(lambda r: pair[r].allreduce(arrays[r], op="average"), 2)
    assert [a.tolist() for a in arrays] == [[0.5 + 1.5j, 2 + 1.5j]] * 2


def test_named_operations_may_come_in_any_order(pair: Pair) -> None:
    arrays = [[np.full(5, 10 * r + i) for i in range(4)] for r in range(2)]

    def start_all(rank: int) -> None:
        order = range(4) if rank == 0 else reversed(range(4))
        comm, own = pair[rank], arrays[rank]
        works = [comm.allreduce_async(own[i], name=f"tensor {i}") for i in order]
        for work in works:
            work.wait(LIMIT)

    together(start_all, 2)
    assert [a[0] for a in arrays[0]] == [10, 12, 14, 16]


def test_a_name_is_used_once_at_a_time(pair: Pair) -> None:
    work = pair[0].allreduce_async(f4(1), name="x")
    with pytest.raises(InvalidArgument, match="x"):
        pair[0].allreduce_async(f4(1), name="x")
    pair[1].allreduce(f4(1), name="x")
    work.wait(LIMIT)


def test_messages_tell_their_source(pair: Pair) -> None:
    array = f4(0, 0)
    work = pair[0].recv_async(array)
    assert work.source is None
    pair[1].send(f4(1, 2), 0)
    assert work.wait(LIMIT) is array
    assert work.source == 1
    assert array.tolist() == [1, 2]
    pair[0].send_async(f4(3, 4), 1, tag=5).wait(LIMIT)
    assert pair[1].recv(array, tag=5) == 0
    assert array.tolist() == [3, 4]
    assert pair[0].barrier_async().source is None
    together(lambda r: pair[r].barrier() if r else None, 2)


def test_sendrecv_swaps(pair: Pair) -> None:
    arrays, got = [f4(1), f4(2, 3)], [f4(0, 0), f4(0)]
    results = together(
        lambda r: pair[r].sendrecv(
            arrays[r], got[r], dest=1 - r, source=1 - r, send_tag=r, recv_tag=1 - r
        ),
        2,
    )
    assert results[0] is got[0]
    assert [a.tolist() for a in got] == [[2, 3], [1]]


def test_messages_of_another_count_do_not_match(pair: Pair) -> None:
    work = pair[0].recv_async(f4(0, 0), 1)
    sent = pair[1].send_async(f4(1, 2, 3), 0)
    with pytest.raises(Mismatch):
        work.wait(LIMIT)
    del sent


def test_completed_works_are_reported_in_order(pair: Pair) -> None:
    comm = pair[0]
    works = [comm.allreduce_async(f4(i), queued=True) for i in range(3)]
    other = comm.allreduce_async(f4(0))
    assert comm.fd() == comm.fd()
    with pytest.raises(TimedOut, match="no queued work has completed after 0.2 s"):
        comm.completed(timeout=0.2)
    for _ in range(4):
        pair[1].allreduce(f4(1))
    other.wait(LIMIT)
    assert comm.completed(2, LIMIT) == works[:2]
    assert comm.completed() == works[2:]
    assert works[2].wait()[0] == 3
    with pytest.raises(InvalidState):
        comm.completed()


def test_descriptor_is_readable_when_there_is_something(pair: Pair) -> None:
    import select

    fd = pair[0].fd()
    assert select.select([fd], [], [], 0)[0] == []
    pair[0].barrier_async(queued=True)  # the queue itself keeps it
    gc.collect()
    pair[1].barrier()
    assert select.select([fd], [], [], LIMIT)[0] == [fd]
    (work,) = pair[0].completed(timeout=0)
    assert work.done()
    assert select.select([fd], [], [], 0)[0] == []


def test_closing_forgets_the_queue(pair: Pair) -> None:
    work = pair[0].barrier_async(queued=True)
    pair[0].close()
    assert work.done()
    with pytest.raises(InvalidState, match="the comm is closed"):
        pair[0].completed()
    with pytest.raises(InvalidState, match="the comm is closed"):
        pair[0].fd()


@pytest.mark.parametrize("options", [{}, {"queued": True}])
def test_a_comm_that_only_its_works_refer_to_is_closed(options: Any) -> None:
    with Endpoint(secret="test") as endpoint:
        comm = endpoint.connect([endpoint.address], 0)
        work = comm.allreduce_async(f4(1), **options)
        comm.works = [work]  # type: ignore[attr-defined]
        seen = weakref.ref(comm)
        del comm, work
        gc.collect()
        assert seen() is None


def test_memory_stays_alive_when_a_cycle_with_its_work_is_collected(pair: Pair) -> None:
    class Tensor:
        memory: Any
        work: Any

    tensor = Tensor()
    tensor.memory = np.zeros(2, np.uint8)
    buffer = replace(as_buffer(tensor.memory, "array"), owner=tensor)
    tensor.work = pair[0].recv_async(buffer, 1)
    memory = weakref.ref(tensor.memory)
    del buffer, tensor
    gc.collect()
    assert memory() is not None
    pair[1].send(b"ab", 0)


def test_buffers_of_a_dropped_receive_stay_alive(pair: Pair) -> None:
    data = bytearray(2)
    pair[0].recv_async(data, 1)
    gc.collect()
    with pytest.raises(BufferError):  # still in use
        data.extend(b"more")
    pair[1].send(b"ab", 0)
    deadline = time.monotonic() + LIMIT
    while bytes(data) != b"ab" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert bytes(data) == b"ab"
