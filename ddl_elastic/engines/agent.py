# SPDX-License-Identifier: Apache-2.0
"""The agent process, which owns a slot, starts its worker, and stops the worker on request."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from ddl_elastic.base.messages import Channel
from ddl_elastic.engines.protocol import ProcessExited, StopProcess

_PR_SET_PDEATHSIG = 1
_PF_EXITING = 4  # a flag in /proc/PID/stat, see proc(5)


def run(channel: Channel[StopProcess], work: Callable[[], None]) -> NoReturn:
    """Fork a worker that calls `work`, and report its exit code to the engine when it exits. The
    kernel kills the worker if its agent exits. The agent kills it if the engine disconnects."""
    worker = os.fork()
    if worker == 0:
        end_with_parent()
        channel.close()
        _run_worker(work)
    watched = os.pidfd_open(worker)
    timeout: float | None = None
    sent = set[int]()  # signals that the agent sent before the worker began to exit
    while True:
        waits_for: list[Any] = [watched, channel]
        ready, _, _ = select.select(waits_for, [], [], timeout)
        if watched in ready:
            _, status = os.waitpid(worker, 0)
            code = os.waitstatus_to_exitcode(status)
            with suppress(OSError):  # the engine has closed the connection
                channel.send(ProcessExited(code, is_ordered(code, sent)))
            os._exit(0)
        grace = _read_grace(channel) if ready else 0.0  # not ready: the grace has passed
        how = signal.SIGTERM if grace else signal.SIGKILL
        if not _is_ending(worker):
            sent.add(how)
        os.kill(worker, how)
        timeout = grace or None


def is_ordered(code: int, sent: Collection[int]) -> bool:
    """Return True if one of the signals sent to a process caused its exit code. After SIGTERM it
    may exit with any code."""
    return -code in sent if code < 0 else signal.SIGTERM in sent


def _is_ending(process: int) -> bool:
    """Return True if a child is already exiting. Its connections close before waitpid can report
    the exit. Other workers may notice that first and request that the child is stopped."""
    state, *fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return state in "ZX" or bool(int(fields[5]) & _PF_EXITING)


def _run_worker(work: Callable[[], None]) -> NoReturn:
    code = 1
    try:
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _read_grace(channel: Channel[StopProcess]) -> float:
    """Receive a StopProcess message and return its grace period. Return 0 if the engine has
    disconnected."""
    try:
        return channel.receive().grace
    except EOFError:
        return 0.0


def end_with_parent() -> None:
    """Make the kernel kill this process when the thread that forked it exits."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
