# SPDX-License-Identifier: Apache-2.0
"""The report and the trace of a comm are readable in every state."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from ranks import LIMIT, join

from ddl_core import Comm, Endpoint
from ddl_core.errors import Aborted


def test_message_records_are_freed_with_the_comm(pair: tuple[Comm, Comm]) -> None:
    first, second = pair
    work = first.recv_async(np.zeros(3, np.float32), 1, tag=2**31 - 1)
    assert [p["operation"] for p in first.report()["pending"]] == [
        "receive(f32, 3, from rank 1, tag 2147483647)"
    ]
    second.abort("enough")
    with pytest.raises(Aborted):
        work.wait(10)
    assert first.report()["pending"] == []
    assert first.counters()["pending"] == 0


def test_a_reason_cut_within_a_character(pair: tuple[Comm, Comm]) -> None:
    first, second = pair
    first.abort("停" * 200)
    with pytest.raises(Aborted, match="停停停"):
        second.barrier()
    assert len(second.report()["members"]) == 2


def test_whom_a_shrink_waits_for() -> None:
    with ThreadPoolExecutor(2) as pool, Endpoint() as a, Endpoint() as b, Endpoint() as c:
        comms = join([a, b, c])
        comms[0].abort("enough")
        assert comms[0].report()["missing"] == []
        for comm in comms:
            with pytest.raises(Aborted):
                while True:
                    comm.barrier()
        early = [pool.submit(comm.shrink) for comm in comms[:2]]
        until = time.monotonic() + LIMIT
        while comms[0].report()["missing"] != [2]:
            assert time.monotonic() < until
        following = [comms[2].shrink(), *(each.result(LIMIT) for each in early)]
        assert [each.size for each in following] == [3] * 3
