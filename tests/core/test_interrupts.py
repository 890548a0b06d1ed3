# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and lack of memory at the worst moments: nothing is lost, and no user stays counted."""

import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest

import ddl_core.handles.comm_handle
from ddl_core import Comm, Endpoint

Pair = tuple[Comm, Comm]


def interrupt_after_start(patch: pytest.MonkeyPatch) -> None:
    """Simulate a signal that arrives when the library has started an operation that Python does not
    know yet."""
    check = ddl_core.handles.comm_handle.check

    def interrupted(status: int) -> None:
        check(status)
        patch.undo()
        raise KeyboardInterrupt

    patch.setattr(ddl_core.handles.comm_handle, "check", interrupted)


@pytest.mark.parametrize("queued", [False, True])
def test_interrupted_start_keeps_the_arrays(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, queued: bool
) -> None:
    a, b = pair
    array = np.ones(1000)
    alive = weakref.ref(array)
    interrupt_after_start(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        a.allreduce_async(array, timeout=20, queued=queued)
    del array
    assert alive() is not None
    assert b.allreduce(np.ones(1000))[0] == 2
    following = a.allreduce_async(np.ones(3), queued=True)
    b.allreduce(np.ones(3))
    assert a.completed() == [following]
    assert following.wait()[0] == 2
    a.allreduce_async(np.ones(3), timeout=20)  # this call frees dropped works
    b.allreduce(np.ones(3))
    assert alive() is None


def drop_at_the_limit(held: list[object]) -> None:
    """Delete held[0] at a place where no Python function can be called any more."""
    try:
        drop_at_the_limit(held)
    except RecursionError:
        if held:
            del held[0]


def test_dropped_where_nothing_can_be_called_keeps_the_arrays(pair: Pair) -> None:
    a, b = pair
    array = np.ones(1000)
    alive = weakref.ref(array)
    held: list[object] = [a.allreduce_async(array)]
    del array
    drop_at_the_limit(held)
    assert not held
    assert alive() is not None
    assert b.allreduce(np.ones(1000))[0] == 2
    following = a.allreduce_async(np.ones(3))
    b.allreduce(np.ones(3))
    following.wait()  # so the work before it is complete here, too
    a.allreduce_async(np.ones(3), timeout=20)  # this call frees dropped works
    b.allreduce(np.ones(3))
    assert alive() is None


WITHOUT_MEMORY_TO_DROP = """
import weakref
import _testcapi
import numpy as np
from concurrent.futures import ThreadPoolExecutor
from ddl_core import Endpoint

endpoints = [Endpoint(secret="test") for _ in range(2)]
addresses = [endpoint.address for endpoint in endpoints]
with ThreadPoolExecutor(2) as pool:
    a, b = pool.map(lambda rank: endpoints[rank].connect(addresses, rank), range(2))
lost = 0
for allocation in range(12):
    array = np.ones(1000)
    alive = weakref.ref(array)
    work = a.allreduce_async(array)
    del array
    _testcapi.set_nomemory(allocation, allocation + 1)
    del work
    _testcapi.remove_mem_hooks()
    lost += alive() is None
    b.allreduce(np.ones(1000))
print(lost)
"""


def test_interrupted_join_loses_no_comm(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        thread.join()
        raise KeyboardInterrupt

    with Endpoint(secret="test") as endpoint:
        monkeypatch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt) as caught:
            endpoint.connect([endpoint.address], 0)
        assert all(comm.closed for comm in endpoint._comms)
        del caught  # its frames would keep a comm that nobody closes


STORM = """
import signal, sys, time
import numpy as np
from ddl_core import Endpoint

class Storm(Exception):
    pass

armed, strikes = False, 0

def strike(*_):
    global armed, strikes
    if armed:
        armed = False
        strikes += 1
        raise Storm

sys.unraisablehook = lambda _: None
endpoint = Endpoint(secret="test")
comm = endpoint.connect([endpoint.address], 0)
array = np.ones(10)
signal.signal(signal.SIGALRM, strike)
signal.setitimer(signal.ITIMER_REAL, 3e-4, 3e-4)
end = time.monotonic() + 2
while time.monotonic() < end:
    try:
        armed = True
        comm.allreduce_async(array, timeout=20).wait()
        comm.allreduce(array, timeout=20)
        armed = False
    except Storm:
        pass
signal.setitimer(signal.ITIMER_REAL, 0)
print(strikes > 100, comm._fast_path.users)
"""


WITHOUT_MEMORY = """
import threading, time
import _testcapi
import numpy as np
from ddl_core import Endpoint
from ddl_core.handles.work import Work

def start_without(allocation, comm, array):
    # whether that one is missed
    start, missed = comm._fast_path.allreduce_async, False
    _testcapi.set_nomemory(allocation, allocation + 1)
    try:
        start(comm, Work, array, None, "sum", {})
    except MemoryError:
        missed = True
    _testcapi.remove_mem_hooks()
    return missed

array = np.ones(10)
endpoints = [Endpoint(secret="test") for _ in range(3)]
addresses = [endpoint.address for endpoint in endpoints]
alone = endpoints[2].connect(addresses[2:], 0)
last = max([n for n in range(20) if start_without(n, alone, array)])

comms = [None, None]
def join(rank):
    comms[rank] = endpoints[rank].connect(addresses[:2], rank)
other = threading.Thread(target=join, args=(1,))
other.start()
join(0)
other.join()

def follow():
    time.sleep(0.3)
    comms[1].allreduce(np.ones(10))
other = threading.Thread(target=follow)
other.start()
missed = start_without(last, comms[0], array)
other.join()
print(missed, array[0])
"""


@pytest.mark.parametrize(
    ("program", "out"),
    [(WITHOUT_MEMORY_TO_DROP, "0\n"), (STORM, "True 0\n"), (WITHOUT_MEMORY, "True 2.0\n")],
    ids=["arrays_of_a_dropped_work", "users_in_a_storm_of_signals", "other_threads_run"],
)
def test_signals_and_lack_of_memory_lose_nothing(program: str, out: str, tmp_path: Path) -> None:
    if "_testcapi" in program:
        pytest.importorskip("_testcapi")
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (ended.stdout, ended.returncode) == (out, 0), ended.stderr
