# SPDX-License-Identifier: Apache-2.0
"""Horovod's timeline: a log of operations in the format of Chrome's trace viewer."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from time import perf_counter
from typing import Any


class TimelineWriter:
    """A log of each operation's negotiation and execution, written while a file is open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: Any = None
        self._began = 0.0
        self._rows: dict[str, int] = {}  # row by name; Chrome shows each name in its own row

    def start(self, path: str) -> None:
        """Open this file, and close the previous one."""
        self.stop()
        file = Path(path).open("w", encoding="utf-8")
        file.write("[\n")
        with self._lock:
            self._file, self._began, self._rows = file, perf_counter(), {}

    def stop(self) -> None:
        """Close the file, if one is open."""
        with self._lock:
            if self._file is not None:
                self._file.write("{}]\n")
                self._file.close()
                self._file = None

    def record(self, kind: str, name: str, began: float, agreed: float, ended: float) -> None:
        """Record an operation: when it began, when the members agreed on it, when it ended."""
        with self._lock:
            if self._file is None:
                return
            row = self._row(name or kind)
            for what, start, end in (
                (f"NEGOTIATE_{kind.upper()}", began, agreed),
                (kind.upper(), agreed, ended),
            ):
                self._write(
                    {
                        "name": what,
                        "ph": "X",
                        "ts": (start - self._began) * 1e6,
                        "dur": (end - start) * 1e6,
                        "pid": row,
                        "tid": 0,
                    }
                )
            self._file.flush()

    def _row(self, name: str) -> int:
        if name not in self._rows:
            self._rows[name] = len(self._rows)
            named = {"name": "process_name", "ph": "M", "pid": self._rows[name], "tid": 0}
            self._write({**named, "args": {"name": name}})
        return self._rows[name]

    def _write(self, event: dict[str, Any]) -> None:
        self._file.write(json.dumps(event) + ",\n")


TIMELINE = TimelineWriter()
