# SPDX-License-Identifier: Apache-2.0
"""Run by test_env_switches on two ranks: metrics and dump of a job that an adapter has joined.

    python env_switches.py ADAPTER

DDL_METRICS_PORT is set.
"""

import os
import re
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np

import ddl_core

WAITED = Path("waited")
Adapter = tuple[Callable[[], object], Callable[[], object]]  # a blocking all-reduce, and leaving


def join_torch() -> Adapter:
    import torch
    import torch.distributed as dist

    dist.init_process_group("ddl")
    part = dist.new_group([0, 1], backend="ddl")
    return lambda: dist.all_reduce(torch.ones(1000), group=part), dist.destroy_process_group


def join_ddl_torch() -> Adapter:
    import torch

    import ddl_torch as ddl

    ddl.init()
    return lambda: ddl.allreduce(torch.ones(1000)), ddl.shutdown


def join_horovod_torch() -> Adapter:
    import torch

    import ddl_horovod.torch as hvd

    hvd.init()
    return lambda: hvd.allreduce(torch.ones(1000), name="x"), hvd.shutdown


def join_tensorflow() -> Adapter:
    import tensorflow as tf

    import ddl_tensorflow as ddl

    ddl.init()
    return lambda: ddl.allreduce(tf.ones(1000)).numpy(), ddl.shutdown


def join_horovod_tensorflow() -> Adapter:
    import tensorflow as tf

    import ddl_horovod.tensorflow as hvd

    hvd.init()
    return lambda: hvd.allreduce(tf.ones(1000), name="x").numpy(), hvd.shutdown


def join_horovod_keras() -> Adapter:
    import ddl_horovod.keras as hvd

    hvd.init()
    return lambda: hvd.allreduce(np.ones(1000, np.float32), name="x"), hvd.shutdown


def join_keras() -> Adapter:
    import ddl_keras as ddl

    ddl.init()
    return lambda: ddl.average_metrics({"loss": 1.0}), ddl.shutdown


def join_jax() -> Adapter:
    import jax.numpy as jnp

    import ddl_jax as ddl

    ddl.init()
    return lambda: np.asarray(ddl.allreduce(jnp.ones(1000))), ddl.shutdown


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
allreduce, leave = globals()[f"join_{sys.argv[1]}"]()
ddl_core.dump_on_signal()
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
