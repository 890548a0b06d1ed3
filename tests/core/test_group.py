# SPDX-License-Identifier: Apache-2.0
"""Groups: collected operations are submitted as one, repeatedly."""

import gc
import time
from typing import Any

import numpy as np
import pytest
from ranks import LIMIT, together

from ddl_core import Comm, Group
from ddl_core.errors import Aborted, DdlError, InvalidArgument, InvalidState

pytestmark = pytest.mark.pure

Pair = tuple[Comm, Comm]


def both(pair: Pair, call: Any) -> Any:
    return together(lambda rank: call(pair[rank]), 2)


def test_leaving_the_block_submits_and_waits(pair: Pair) -> None:
    def step(comm: Comm) -> list[float]:
        a, b = np.full(3, comm.rank + 1.0), np.full(2, comm.rank, np.int16)
        with comm.group() as group:
            assert group.allreduce(a) is a
            assert group.broadcast(b, 1) is b
            assert a[0] == comm.rank + 1  # no operation has run
        return [a[0], b[0]]

    assert both(pair, step) == ([3, 1], [3, 1])


def test_an_exception_in_the_block_submits_nothing(alone: Comm) -> None:
    a = np.ones(3)
    with pytest.raises(ZeroDivisionError), alone.group() as group:
        group.allreduce(a, postscale=3.0)
        _ = 1 / 0
    assert a[0] == 1


def test_what_was_submitted_in_the_block_is_not_submitted_again(alone: Comm) -> None:
    a = np.ones(3)
    with alone.group() as group:
        group.allreduce(a, postscale=3.0)
        group.submit()
    assert a[0] == 3


def test_groups_are_submitted_again(pair: Pair) -> None:
    def steps(comm: Comm) -> list[float]:
        a, b = np.ones(4), np.ones(4)
        group = comm.group()
        group.allreduce(a)
        group.submit()
        group.allreduce(b, prescale=2.0)
        assert group.submit_async(name="both").wait(LIMIT) is None
        group.submit(timeout=LIMIT)
        group.close()
        group.close()
        with pytest.raises(InvalidState, match="the group is closed"):
            group.allreduce(a)
        return [a[0], b[0]]

    assert both(pair, steps) == ([8, 16], [8, 16])


def test_messages_in_a_group(pair: Pair) -> None:
    def exchange(comm: Comm) -> tuple[Any, ...]:
        got, other = np.zeros(2), 1 - comm.rank
        with comm.group() as group:
            received = group.recv(got)
            group.send(np.full(2, comm.rank + 5.0), other)
            assert received.source is None
        return got[0], received.source

    assert both(pair, exchange) == ((6, 1), (5, 0))


def test_arguments_are_checked_at_the_call(pair: Pair) -> None:
    group, a = pair[0].group(), np.ones(4)
    with pytest.raises(InvalidArgument, match="recv has 2 elements; must have 4"):
        group.allreduce(a, np.ones(2))
    with pytest.raises(
        InvalidArgument,
        match="timeout cannot be set for an operation of a group; pass it to submit",
    ):
        group.allreduce(a, timeout=1)
    with pytest.raises(InvalidArgument, match="name cannot be set for an operation of a group"):
        group.allreduce(a, name="x")
    with pytest.raises(DdlError, match="f64"):
        group.allreduce(a, op="bit_or")
    assert repr(group).endswith("0 operations>")


def test_a_group_under_way_refuses_calls(pair: Pair) -> None:
    group, a = pair[0].group(), np.ones(4)
    group.allreduce(a)
    work = group.submit_async()
    for call in (group.submit, group.close, lambda: group.allreduce(a)):
        with pytest.raises(InvalidState, match="the group is active"):
            call()
    with pair[1].group() as other:
        other.allreduce(np.ones(4))
    work.wait(LIMIT)
    assert a[0] == 2
    group.close()


def test_arrays_live_as_long_as_they_are_needed(pair: Pair) -> None:
    data = bytearray(8)

    def submit_and_forget() -> None:
        group = pair[0].group()
        group.allreduce(data)
        group.submit_async()

    submit_and_forget()
    gc.collect()
    with pytest.raises(BufferError):  # still in use
        data.extend(b"more")
    with pair[1].group() as other:
        other.allreduce(bytearray(b"\1" * 8))
    deadline = time.monotonic() + LIMIT
    while data[0] != 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert bytes(data) == b"\1" * 8
    both(pair, lambda comm: comm.barrier_async().wait())
    gc.collect()
    data.extend(b"more")


def test_closing_the_comm_ends_its_groups(pair: Pair) -> None:
    idle, group = pair[0].group(), pair[0].group()
    group.allreduce(np.ones(4))
    idle.allreduce(np.ones(4))
    work = group.submit_async()
    pair[0].close()
    with pytest.raises(Aborted):
        work.wait(LIMIT)
    for closed in (idle, group):
        with pytest.raises(InvalidState, match="the comm is closed"):
            closed.submit()
        with pytest.raises(InvalidState, match="the comm is closed"):
            closed.barrier()
    with pytest.raises(InvalidState, match="the comm is closed"):
        pair[0].group()


def test_closing_with_idle_groups(pair: Pair) -> None:
    def leave(comm: Comm) -> None:
        group = comm.group()
        group.allreduce(np.ones(4))
        group.submit()
        if comm.rank == 0:
            comm.close()

    both(pair, leave)
    assert pair[1].error is None


def test_group_is_exported(alone: Comm) -> None:
    assert isinstance(alone.group(), Group)
