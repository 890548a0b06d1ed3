# SPDX-License-Identifier: Apache-2.0
"""dump_on_signal: the dump of a program in a blocking call, with real signals."""

import signal
import textwrap

import pytest
from conftest import Run

import ddl_core

BLOCKED = """
import asyncio, os, signal, threading, time
import ddl_core
comm = ddl_core.init(ddl_core.Config(timeout=20, operation_timeout=20))
ddl_core.dump_on_signal(signal.SIGUSR1)
import faulthandler
faulthandler.unregister(signal.SIGUSR1)
ddl_core.dump_on_signal()
asyncio.run(asyncio.sleep(0))  # takes set_wakeup_fd
comm.barrier()
def send():
    for _ in range(2):
        time.sleep(0.4)
        os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(0.4)
    print("waited", flush=True)
    open("waited", "w").close()
if comm.rank == 0:
    threading.Thread(target=send).start()
    comm.barrier()  # in C, in the main thread
else:
    while not os.path.exists("waited"):
        time.sleep(0.01)
    comm.barrier()
print("goes on", flush=True)
"""

FORKED = """
import os, signal, time
import ddl_core
ddl_core.dump_on_signal(signal.SIGUSR2)
child = os.fork()
if child == 0:
    os.kill(os.getpid(), signal.SIGUSR2)
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
time.sleep(0.3)
os.kill(os.getpid(), signal.SIGUSR2)
time.sleep(3)
"""


def test_report_of_a_blocked_rank_names_the_missing(ddlrun: Run) -> None:
    ended = ddlrun(2, textwrap.dedent(BLOCKED)).expect_success()
    # Each dump comes at once, though the main thread stays in the library.
    assert ended.lines(0) == ["waited", "goes on"], ended.err
    assert ended.err.count("barrier as operation 2 has waited for") == 2, ended.err
    assert ended.err.count("missing: rank 1 on ") == 2
    assert "comm 0 of 2 ranks" in ended.err
    assert ended.err.count('program.py", line 20 in <module>') == 2  # the stack


def test_a_forked_child_does_not_die(ddlrun: Run) -> None:
    ended = ddlrun(1, textwrap.dedent(FORKED)).expect_success()
    assert ended.lines(0) == ["7"]
    assert ended.err.count("this process has no comm") == 1  # the parent's own
    assert ended.err.count("in <module>") == 2


def test_wrong_signals() -> None:
    with pytest.raises(ValueError):
        ddl_core.dump_on_signal(10_000)
    with pytest.raises(RuntimeError):
        ddl_core.dump_on_signal(signal.SIGSEGV)
