# SPDX-License-Identifier: Apache-2.0
"""Comm.expel: a hanging rank counts as dead, and the others continue without it."""

import textwrap

import pytest
from conftest import Run
from ranks import together

from ddl_core import Comm, errors

HANGS = """
import os, signal, sys, threading
import numpy as np
import ddl_core
comm = ddl_core.init(ddl_core.Config(timeout=40, suspect=600, dead=600))
rank, pids = comm.rank, np.zeros(comm.size, np.int32)
comm.allgather(np.array([os.getpid()], np.int32), pids)

def expel_when_stopped():
    state = ""
    while state != "T":
        with open(f"/proc/{pids[1]}/stat") as file:
            state = file.read().rpartition(")")[2].split()[0]
    comm.expel(1, "no step for 30 s")

comm.barrier()
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
agent = threading.Thread(target=expel_when_stopped)
if rank == 0:
    agent.start()
try:
    while True:
        comm.barrier()
except ddl_core.errors.PeerLost as error:
    assert "expelled by rank 0 on " in str(error) and "no step for 30 s" in str(error), error
if rank == 1:
    try:
        comm.shrink()
    except ddl_core.errors.Minority as error:
        print(str(error).partition(": it was ")[2])
    sys.exit()
if rank == 0:
    agent.join()
    assert comm.failed() == [1], comm.failed()
following = comm.shrink()
comm.close()
ones = np.ones(3)
following.allreduce(ones)
print(following.rank, following.size, ones.tolist())
if rank == 0:
    os.kill(pids[1], signal.SIGCONT)
following.close()
"""


@pytest.mark.parametrize("links", ["shm", "tcp"])
def test_a_rank_that_hangs_is_expelled(ddlrun: Run, links: str) -> None:
    ended = ddlrun(3, textwrap.dedent(HANGS), env={"DDL_LINKS": links})
    assert ended.lines(0) == ["0 2 [2.0, 2.0, 2.0]"], ended.err
    assert ended.lines(2) == ["1 2 [2.0, 2.0, 2.0]"], ended.err
    [line] = ended.lines(1)
    assert line.startswith("expelled by rank 0 on ")
    assert line.endswith(": no step for 30 s")


def test_the_expelled_rank_is_told(pair: tuple[Comm, Comm]) -> None:
    pair[1].expel(0, "preempted")

    def fail(rank: int) -> str:
        with pytest.raises(errors.PeerLost, match="rank 0 on .*expelled by rank 1 on .*preempted"):
            while True:
                pair[rank].barrier()
        return str(pair[rank].error)

    together(fail, 2)
    assert pair[1].failed() == [0]
    with pytest.raises(errors.Minority, match="expelled by rank 1 on .*: preempted"):
        pair[0].shrink()
    with pytest.raises(errors.Minority, match="cannot expel rank 1"):
        pair[0].expel(1)
    with pair[1].shrink() as following:
        assert following.size == 1


def test_what_cannot_be_expelled(pair: tuple[Comm, Comm]) -> None:
    with pytest.raises(errors.InvalidArgument, match="rank is 0, which is the calling rank"):
        pair[0].expel(0)
    for rank in (-1, 2):
        with pytest.raises(errors.InvalidArgument, match=f"rank is {rank}; must be"):
            pair[0].expel(rank)
    together(lambda rank: pair[rank].barrier(), 2)
