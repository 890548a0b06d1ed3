# SPDX-License-Identifier: Apache-2.0
"""Run by test_env_switches on two ranks: metrics and dump of a job that an adapter has joined.

    python env_switches.py ADAPTER

DDL_METRICS_PORT and DDL_DUMP_SIGNAL are set.
"""

import importlib
import os
import re
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

WAITED = Path("waited")
# For each adapter: the module of its arrays, and a blocking all-reduce.
ADAPTERS: dict[str, tuple[str, Callable[[Any, Any], object]]] = {
    "ddl_torch": ("torch", lambda ddl, xp: ddl.allreduce(xp.ones(1000))),
    "ddl_horovod.torch": ("torch", lambda ddl, xp: ddl.allreduce(xp.ones(1000), name="x")),
    "ddl_tensorflow": ("tensorflow", lambda ddl, xp: ddl.allreduce(xp.ones(1000)).numpy()),
    "ddl_horovod.tensorflow": (
        "tensorflow",
        lambda ddl, xp: ddl.allreduce(xp.ones(1000), name="x").numpy(),
    ),
    "ddl_horovod.keras": ("numpy", lambda ddl, xp: ddl.allreduce(xp.ones(1000, "f"), name="x")),
    "ddl_keras": ("numpy", lambda ddl, _: ddl.average_metrics({"loss": 1.0})),
    "ddl_jax": ("jax.numpy", lambda ddl, xp: np.asarray(ddl.allreduce(xp.ones(1000)))),
}


def join(adapter: str) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return a blocking all-reduce, and the function that leaves the job."""
    if adapter == "torch":
        import torch
        import torch.distributed as dist

        dist.init_process_group("ddl")
        part = dist.new_group([0, 1], backend="ddl")
        return lambda: dist.all_reduce(torch.ones(1000), group=part), dist.destroy_process_group
    arrays, call = ADAPTERS[adapter]
    xp, ddl = importlib.import_module(arrays), importlib.import_module(adapter)
    ddl.init()
    return lambda: call(ddl, xp), ddl.shutdown


def read_metrics(address: str) -> int:
    """Return the largest number of operations of this process's comms of two ranks."""
    with urllib.request.urlopen(address, timeout=10) as answer:
        text = answer.read().decode()
    pattern = rf'^ddl_operations_total{{comm="\d+",rank="{rank}",size="2"}} (\d+)$'
    return max(int(number) for number in re.findall(pattern, text, re.MULTILINE))


def interrupt() -> None:
    time.sleep(0.5)  # the main thread waits
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(0.5)
    WAITED.touch()


rank = int(os.environ["DDL_RANK"])
allreduce, leave = join(sys.argv[1])
address = f"http://127.0.0.1:{int(os.environ['DDL_METRICS_PORT']) + rank}/metrics"
before = read_metrics(address)
for _ in range(5):
    allreduce()
assert read_metrics(address) >= before + 5
if rank == 0:
    threading.Thread(target=interrupt).start()
else:
    while not WAITED.exists():
        time.sleep(0.01)
allreduce()
leave()
try:
    read_metrics(address)
    raise AssertionError("the metrics are still served")
except OSError:
    print("done", flush=True)
