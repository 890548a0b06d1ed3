# SPDX-License-Identifier: Apache-2.0
"""Ranks that share cores: what takes their cores while they wait."""

import os

from conftest import Run

AWAKE = """
import os, threading, time
import numpy as np
import ddl_core

def wakes():  # of the library's threads
    total = 0
    for thread in os.listdir("/proc/self/task"):
        if int(thread) != threading.get_native_id():
            with open(f"/proc/self/task/{thread}/status") as status:
                total += sum(int(line.split()[1]) for line in status if line[:9] == "voluntary")
    return total

comm, stop, calls = ddl_core.init(), np.zeros(1, np.float32), 0
comm.barrier()
before, end = wakes(), time.monotonic() + 0.5
while not stop[0]:
    stop[0] = time.monotonic() > end
    comm.allreduce(stop, op="max")
    calls += 1
woken = wakes() - before
assert calls > 100 and woken < 100, f"rank {comm.rank}: {calls} calls, woken {woken} times"
"""


def test_blocking_calls_of_ranks_that_share_cores_wake_no_thread(ddlrun: Run) -> None:
    ddlrun((os.cpu_count() or 1) + 2, AWAKE).expect_success()
