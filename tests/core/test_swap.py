# SPDX-License-Identifier: Apache-2.0
"""A job grows and shrinks as planned: the next comm is created while the current one runs, and all
members change to it after the same step."""

import textwrap

import pytest
from conftest import Run

# Processes 0 and 1 begin, 2 joins them, 0 leaves. A comm of all processes serves to exchange
# addresses.
JOB = """
from concurrent.futures import Future, ThreadPoolExecutor
import numpy as np
import ddl_core

PLANS = [[0, 1], [0, 1, 2], [1, 2]]
STEPS = 200  # before the next plan
everyone = ddl_core.init(ddl_core.Config(timeout=40))
me = everyone.rank
endpoint = ddl_core.Endpoint()
rows, lengths = np.zeros((3, 1024), np.uint8), np.zeros(3, np.int32)
rows[me, : len(endpoint.address)] = np.frombuffer(endpoint.address, np.uint8)
lengths[me] = len(endpoint.address)
everyone.allreduce(rows)
everyone.allreduce(lengths)
addresses = [bytes(row[:length]) for row, length in zip(rows, lengths)]
background = ThreadPoolExecutor(1)

def create(plan):
    members = PLANS[plan]
    if me in members:
        config = ddl_core.Config(timeout=40, epoch=plan + 1)
        return endpoint.connect([addresses[m] for m in members], members.index(me), config)

def swap(comm, following):
    comm.close()
    comm = following.result()
    if comm:
        comm.broadcast(step, root=comm.size - 2)  # a member that was there before
    return comm

step, beside = np.zeros(1, np.int64), 0
plan = 1 if me == 2 else 0
if me == 2:
    everyone.recv(np.zeros(1), 1)  # until steps go on beside the creation
comm = create(plan)
if me == 2:
    comm.broadcast(step, root=1)
for plan in range(plan, 2):
    following, made = None, 0
    while True:
        step += 1
        made += 1
        total = (me + 1) * step
        comm.allreduce(total)
        assert total[0] == step[0] * sum(m + 1 for m in PLANS[plan]), (step, total)
        if made == STEPS:
            following = background.submit(create, plan + 1)
        if made == 2 * STEPS and me == 1 and plan == 0:
            everyone.send(np.zeros(1), 2)
        ready = np.array([following is not None and following.done()], np.int32)
        beside += following is not None and not ready[0]
        comm.allreduce(ready, op="min")
        if ready[0]:
            break
    comm = swap(comm, following)
    if not comm:
        break
print("member" if comm else "left", beside >= STEPS)
if comm:
    comm.barrier()
    comm.close()
background.shutdown()
endpoint.close()
everyone.close()
"""


@pytest.mark.parametrize("links", ["shm", "tcp"])
def test_grow_and_leave_beside_the_running_comm(ddlrun: Run, links: str) -> None:
    ended = ddlrun(3, textwrap.dedent(JOB), env={"DDL_LINKS": links})
    assert ended.lines(0) == ["left True"], ended.err
    assert ended.lines(1) == ["member True"], ended.err
    # It joined in the first creation; the number of steps during the second one is random.
    assert [line.split()[0] for line in ended.lines(2)] == ["member"], ended.err
