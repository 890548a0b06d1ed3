"""Tell the launcher of an exception that nobody catches, before the other ranks can notice its
consequences: so it knows which rank failed first, and why."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from types import TracebackType

_LARGEST = 1024  # characters of the exception


def report_to_launcher() -> None:
    """From now on an uncaught exception of the main thread is reported, where a launcher listens:
    DDL_LAUNCHER, see ddl_launch/reports.py. The hook that was there runs as well."""
    name, rank = os.environ.get("DDL_LAUNCHER"), os.environ.get("DDL_RANK")
    if not name or not rank:
        return
    previous = sys.excepthook

    def report(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        if issubclass(kind, Exception):  # a KeyboardInterrupt is the user's wish
            _send(name, f"{rank} raised {describe(error)}")
        previous(kind, error, traceback)

    sys.excepthook = report


def describe(error: BaseException) -> str:
    """As the last lines of a traceback have it: "ValueError: boom"."""
    kind = type(error)
    module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    try:
        message = str(error)
    except Exception:
        message = "<no message: its __str__ failed>"
    text = f"{module}{kind.__qualname__}" + (f": {message}" if message else "")
    return text[:_LARGEST]


def _send(name: str, text: str) -> None:
    """Wait for nothing: a launcher that is gone needs no report."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        data = text.encode(errors="replace")
        sender.sendto(data, socket.MSG_DONTWAIT, b"\0" + name.encode())
