# SPDX-License-Identifier: Apache-2.0
"""An agent: owns a slot, starts one worker, watches it, and ends it when told to."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from ddl_elastic.messages import Channel

_PR_SET_PDEATHSIG = 1


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
    ordered = False
    while True:
        waits_for: list[Any] = [watched, channel]
        ready, _, _ = select.select(waits_for, [], [], timeout)
        if watched in ready:
            _, status = os.waitpid(worker, 0)
            with suppress(OSError):  # the engine is closed
                channel.send("ended", code=os.waitstatus_to_exitcode(status), ordered=ordered)
            os._exit(0)
        grace = _read_grace(channel) if ready else 0.0  # not ready: the grace has passed
        os.kill(worker, signal.SIGTERM if grace else signal.SIGKILL)
        ordered = True
        timeout = grace or None


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
