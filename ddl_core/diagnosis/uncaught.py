# SPDX-License-Identifier: Apache-2.0
"""Reports of uncaught exceptions to the launcher, sent before other ranks can notice the
consequences. So the launcher knows which rank failed first, and why."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from types import TracebackType

_LARGEST = 1024  # the most characters of the exception


def report_to_launcher() -> None:
    """Install a hook that reports uncaught exceptions of the main thread to the socket in
    DDL_LAUNCHER, if set; see ddl_launch/rank/reports.py. It also calls the previous hook."""
    name, rank = os.environ.get("DDL_LAUNCHER"), os.environ.get("DDL_RANK")
    if not name or not rank:
        return
    previous = sys.excepthook

    def report(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        if issubclass(kind, Exception):  # a KeyboardInterrupt is the user's intention
            _send(name, f"{rank} raised {describe(error)}")
        previous(kind, error, traceback)

    sys.excepthook = report


def describe(error: BaseException) -> str:
    """Return the exception as in the last line of a traceback: "ValueError: boom"."""
    kind = type(error)
    module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    try:
        message = str(error)
    except Exception:
        message = "<no message: its __str__ failed>"
    text = f"{module}{kind.__qualname__}" + (f": {message}" if message else "")
    return text[:_LARGEST]


def _send(name: str, text: str) -> None:
    """Send without waiting: a launcher that has exited needs no report."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        data = text.encode(errors="replace")
        sender.sendto(data, socket.MSG_DONTWAIT, b"\0" + name.encode())
