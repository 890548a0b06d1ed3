# SPDX-License-Identifier: Apache-2.0
"""The execution of futures' callbacks in a fixed order: csrc/callbacks.hpp in Python."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from ddl_torch.futures import Future

_thread = threading.local()


def current() -> str | None:
    """Return the name of the group whose callback this thread runs, or None if it runs none."""
    return getattr(_thread, "group", None)


class Callbacks:
    """A queue that runs the callbacks of one group's futures one at a time, in the order in which
    they were added."""

    def __init__(self) -> None:
        self.group = ""  # the group's name, equal on all ranks
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._running = False

    def then(self, future: Any, callback: Callable[[Any], Any], of_callback: bool) -> Future:
        gate: Any = torch.futures.Future()
        after = Future(self, of_callback=True)
        gate.then(callback).add_done_callback(lambda done: _copy(done, after))
        self._open_in_order(gate, future, of_callback)
        return after

    def add_done_callback(
        self, future: Any, callback: Callable[[Any], None], of_callback: bool
    ) -> None:
        gate: Any = torch.futures.Future()
        gate.add_done_callback(callback)
        self._open_in_order(gate, future, of_callback)

    def _open_in_order(self, gate: Any, future: Any, of_callback: bool) -> None:
        # This thread completes the future after the current callback, so do not wait for it here.
        if of_callback and current() == self.group and not future.done():
            torch.futures.Future.add_done_callback(future, lambda done: _copy(done, gate))
        else:
            self._add(lambda: _copy(future, gate))

    def _add(self, task: Callable[[], None]) -> None:
        if current() is not None:
            task()
            return
        with self._lock:
            self._waiting.append(task)
            if self._running:
                return
            self._running = True
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        _thread.group = self.group
        while True:
            with self._lock:
                if not self._waiting:
                    self._running = False
                    return
                task = self._waiting.popleft()
            task()


def _copy(source: Any, target: Any) -> None:
    """Wait for the source, and complete the target with its value or exception."""
    try:
        value = source.wait()
    except Exception as error:
        target.set_exception(error)
    else:
        target.set_result(value)
