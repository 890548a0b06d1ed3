# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in a blocking call that waits for another rank is handled soon. The operation continues as
a dropped asynchronous one, and its arrays live until it ends."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import gc, signal, sys, threading, time, weakref
from concurrent.futures import ThreadPoolExecutor
import numpy as np
from ddl_core import Config, Endpoint

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
endpoints = [Endpoint(secret="test") for _ in range(2)]
addresses = [each.address for each in endpoints]
config = Config(operation_timeout=20)
with ThreadPoolExecutor(2) as pool:
    a, b = pool.map(lambda rank: endpoints[rank].connect(addresses, rank, config), range(2))
call, count = sys.argv[1], int(sys.argv[2])
CALLS = {
    "allreduce": lambda comm, array: comm.allreduce(array),
    "named": lambda comm, array: comm.allreduce(array, name="it"),
    "general": lambda comm, array: comm.allreduce(array, timeout=20),
    "reduce_scatter": lambda comm, array: comm.reduce_scatter(array, np.empty(array.size // 2)),
    "broadcast": lambda comm, array: comm.broadcast(array, 1),
    "allgather": lambda comm, array: comm.allgather(array[: array.size // 2].copy(), array),
    "barrier": lambda comm, array: comm.barrier(),
    "recv": lambda comm, array: comm.recv(array, 1),
}

def interrupt():
    time.sleep(0.3)
    signal.pthread_kill(main, signal.SIGINT)

main = threading.main_thread().ident
array = np.ones(count)
alive = weakref.ref(array)
threading.Thread(target=interrupt).start()
begun = time.monotonic()
try:
    CALLS[call](a, array)
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - begun < 10)
del array
gc.collect()
print("kept", alive() is not None or call == "barrier")
other = np.ones(count)
b.send(other, 0) if call == "recv" else CALLS[call](b, other)
for _ in range(2):  # the comm lives
    with ThreadPoolExecutor(2) as pool:
        for each in pool.map(lambda comm: comm.allreduce(np.ones(3))[0], (a, b)):
            assert each == 2
gc.collect()
print("freed", alive() is None, a._fast_path.users, a._dropped)
for each in (a, b, *endpoints):
    each.close()
"""

CALLS = ["allreduce", "named", "general", "reduce_scatter", "broadcast", "allgather", "barrier"]


@pytest.mark.parametrize(
    ("call", "count"), [*((call, 10) for call in [*CALLS, "recv"]), ("allreduce", 100_000)]
)
def test_interrupted_call(tmp_path: Path, call: str, count: int) -> None:
    command = [sys.executable, "-c", PROGRAM, call, str(count)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    expected = "interrupted True\nkept True\nfreed True 0 []\n"
    assert (ended.stdout, ended.returncode) == (expected, 0), ended.stderr
