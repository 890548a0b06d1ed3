# SPDX-License-Identifier: Apache-2.0
"""An agent: owns a slot, starts one worker, watches it, and ends it when told to."""

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

_PR_SET_PDEATHSIG = 1
_PF_EXITING = 4  # of a task's flags, see proc(5)


def run(channel: Channel, work: Callable[[], None]) -> NoReturn:
    """Fork the worker, which calls `work`, and stay until it has ended, and its code is told. The
    worker ends with its agent, and both with the engine."""
    worker = os.fork()
    if worker == 0:
        end_with_parent()
        channel.close()
        _run_worker(work)
    watched = os.pidfd_open(worker)
    timeout: float | None = None
    sent = set[int]()  # signals, while it lived
    while True:
        waits_for: list[Any] = [watched, channel]
        ready, _, _ = select.select(waits_for, [], [], timeout)
        if watched in ready:
            _, status = os.waitpid(worker, 0)
            code = os.waitstatus_to_exitcode(status)
            with suppress(OSError):  # the engine is closed
                channel.send("ended", code=code, ordered=is_ordered(code, sent))
            os._exit(0)
        grace = _read_grace(channel) if ready else 0.0  # not ready: the grace has passed
        how = signal.SIGTERM if grace else signal.SIGKILL
        if not _is_ending(worker):
            sent.add(how)
        os.kill(worker, how)
        timeout = grace or None


def is_ordered(code: int, sent: Collection[int]) -> bool:
    """Whether these signals have ended the process. At SIGTERM a program may exit with any code."""
    return -code in sent if code < 0 else signal.SIGTERM in sent


def _is_ending(process: int) -> bool:
    """Whether a child is about to end, by itself or by another signal. Its connections close before
    its end can be seen, and at that the others have it stopped."""
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


def _read_grace(channel: Channel) -> float:
    """Of an order to stop; 0 if the engine is gone."""
    try:
        return float(channel.receive().fields["grace"])
    except EOFError:
        return 0.0


def end_with_parent() -> None:
    """Have the kernel kill this process when the thread that has forked it ends."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
