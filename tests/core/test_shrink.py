# SPDX-License-Identifier: Apache-2.0
"""Functions for survivors: shrink, failed, report, trace and counters."""

import json
import math
import textwrap
import time

import pytest
from conftest import Run
from ranks import join, together

from ddl_core import Comm, Config, Endpoint, errors

GO_ON = """
import os, signal, sys, time
import numpy as np
import ddl_core
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # ddlrun would end the others first
comm = ddl_core.init(ddl_core.Config(timeout=20, operation_timeout=20))
before = comm.rank
try:
    comm.barrier()
    if before == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        comm.barrier()
except ddl_core.errors.PeerLost as error:
    assert "rank 1 on " in str(error), error
following = comm.shrink()
assert comm.failed() == [1], comm.failed()
comm.close()
ones = np.ones(3)
following.allreduce(ones)
print(before, following.rank, following.size, ones.tolist(), flush=True)
following.close()
"""

GIL = """
import ctypes, time
import ddl_core
comm = ddl_core.init(ddl_core.Config(timeout=20, suspect=0.3, dead=0.6))
comm.barrier()
if comm.rank == 1:
    ctypes.PyDLL(None).sleep(3)  # PyDLL keeps the GIL
comm.barrier()
print("alive", comm.failed())
"""


def test_survivors_go_on_in_the_same_processes(ddlrun: Run) -> None:
    ended = ddlrun(4, textwrap.dedent(GO_ON), env={"DDL_LINKS": "shm"})
    for new, rank in enumerate([0, 2, 3]):
        assert ended.lines(rank) == [f"{rank} {new} 3 [3.0, 3.0, 3.0]"], ended.err


def test_a_rank_that_holds_the_gil_is_alive(ddlrun: Run) -> None:
    ended = ddlrun(2, textwrap.dedent(GIL), env={"DDL_LINKS": "tcp"})
    assert ended.lines(0) == ended.lines(1) == ["alive []"], ended.err


def test_shrink_after_abort(pair: tuple[Comm, Comm]) -> None:
    with pytest.raises(errors.InvalidState, match="the comm is alive"):
        pair[0].shrink()
    pair[0].abort("again")
    deadline = time.monotonic() + 5
    while pair[1].error is None and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(errors.Aborted, match="again"):
        pair[1].barrier()
    following = together(lambda rank: pair[rank].shrink(), 2)
    for comm in pair:
        comm.close()
    together(lambda rank: following[rank].barrier(), 2)
    assert [comm.rank for comm in following] == [0, 1]


def test_report_trace_and_counters(pair: tuple[Comm, Comm]) -> None:
    together(lambda rank: pair[rank].barrier(), 2)
    work = pair[0].barrier_async()
    time.sleep(0.3)
    report = pair[0].report()
    assert report["rank"] == 0
    assert report["size"] == 2
    assert report["pending"][0]["operation"] == "barrier"
    assert report["pending"][0]["waiting_s"] > 0.2
    assert report["missing"] == [1]
    assert report["members"][1]["state"] == "alive"
    assert pair[0].counters()["pending"] == 1
    pair[1].barrier()
    work.wait()
    assert pair[0].report()["missing"] == []
    events = [e for e in pair[0].trace()["traceEvents"] if e["ph"] == "X"]
    assert [e["name"] for e in events[1:]] == ["barrier", "barrier"]
    assert abs(events[-1]["ts"] / 1e6 - time.time()) < 60
    assert json.dumps(events)
    counters = pair[0].counters()
    assert counters["operations"] == 3
    assert counters["deaths"] == counters["pending"] == 0
    assert pair[0].failed() == []


def test_report_of_a_comm_of_one(alone: Comm) -> None:
    alone.barrier()
    assert alone.report()["members"] == []
    assert alone.failed() == []
    assert len(alone.trace()["traceEvents"]) == 3
    with pytest.raises(errors.InvalidState):
        alone.shrink()


def test_limits_come_in_seconds() -> None:
    fields = Config(heartbeat=0.05, suspect=math.inf, dead=2, stall_warn=0.5).fields()
    assert fields["heartbeat_ms"] == 50
    assert fields["suspect_ms"] == -1
    assert fields["dead_ms"] == 2000
    assert fields["stall_warn_ms"] == 500
    with pytest.raises(errors.InvalidArgument, match="heartbeat"):
        Config(heartbeat=math.inf).fields()


def test_limits_must_fit_together() -> None:
    with (
        Endpoint(secret="test") as a,
        Endpoint(secret="test") as b,
        pytest.raises(errors.InvalidArgument, match="at least 3 times heartbeat_ms"),
    ):
        join([a, b], Config(heartbeat=1, dead=2))
