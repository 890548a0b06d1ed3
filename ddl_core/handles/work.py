# SPDX-License-Identifier: Apache-2.0
"""Asynchronous operations."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ddl_core.base import fork_guard
from ddl_core.base._lib import Pending, to_error
from ddl_core.errors import InvalidArgument, TimedOut

_OK, _TIMED_OUT = 0, -20  # ddl_status
SLICE_MS = 100  # milliseconds of one waiting call; signals are handled between two calls

Array = TypeVar("Array")


def wait_in_slices(look: Callable[[int], int], timeout: float | None, pending: str) -> int:
    """Call `look(milliseconds)` until its status is not TIMED_OUT. Return the status.

    Raises TimedOut with the text `pending` after `timeout` seconds. 0 does not wait; None means no
    limit.
    """
    try:
        wrong = timeout is not None and not float(timeout) >= 0
    except (TypeError, ValueError):
        wrong = True
    if wrong:
        raise InvalidArgument(f"timeout is {timeout!r}; must be a number of seconds >= 0")
    deadline = math.inf if timeout is None else time.monotonic() + float(timeout)
    status = look(0)
    while status == _TIMED_OUT:
        left = (deadline - time.monotonic()) * 1000
        if left <= 0:
            raise TimedOut(f"{pending} after {timeout} s")
        status = look(math.ceil(min(left, SLICE_MS)))
    return status


class Work(Pending, Generic[Array]):
    """A pending operation. Its arrays must not be used until it is complete. They stay alive until
    then, even if the Work itself is dropped.

    Created by the `..._async` methods of Comm and Group. Any thread may wait.
    """

    __slots__ = ("__weakref__",)

    if TYPE_CHECKING:  # csrc/pending.c

        def wait(self, timeout: float | None = None) -> Array: ...

    def _wait_for(self, timeout: float) -> Array:
        status = wait_in_slices(self._look, timeout, "the operation is still pending")
        return self._failed(status) if status != _OK else self.wait()

    def _failed(self, status: int) -> Any:
        raise to_error(status)

    @property
    def source(self) -> int | None:
        """The sender's rank, or None until a message has been received."""
        if self._sender is None or not self.done() or self._sender[0] < 0:
            return None
        return int(self._sender[0])

    __reduce__ = fork_guard.refuse_copy

    def __repr__(self) -> str:
        return f"<ddl_core.Work of {self._comm!r}, {'complete' if self.done() else 'pending'}>"
