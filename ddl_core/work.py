"""One asynchronous operation."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ddl_core._lib import lib, to_error
from ddl_core.errors import InvalidArgument, TimedOut

if TYPE_CHECKING:
    from ddl_core.comm import Comm

_OK, _INPROGRESS, _TIMED_OUT = 0, 1, -20  # ddl_status
_SLICE_MS = 100  # how long one call waits, so that Ctrl-C is noticed in between

Array = TypeVar("Array")


class Work(Generic[Array]):
    """An operation under way. Its arrays must not be touched until it is complete; they are kept
    alive until then, also when the Work itself is dropped.

    Made by the `..._async` methods of Comm. Any thread may wait.
    """

    __slots__ = ("__weakref__", "_comm", "_handle", "_keep", "_result")

    def __init__(self, comm: Comm, handle: Any, result: Array, keep: object) -> None:
        self._comm = comm
        self._handle = handle
        self._result = result
        self._keep = keep

    def wait(self, timeout: float | None = None) -> Array:
        """Wait until the operation is complete and return the array that holds its result (None for
        a barrier). Waiting again returns, or raises, the same.

        timeout: seconds, 0 only looks; None: no limit but the operation's own.
        Raises TimedOut after `timeout`, the work then being pending still; else what the operation
        ended with: PeerLost, Mismatch, Aborted, Expired.
        """
        if timeout is not None and not timeout >= 0:
            raise InvalidArgument(f"timeout: {timeout!r} is not a number of seconds from 0 on")
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        status = lib.ddl_work_test(self._handle)
        while status == _INPROGRESS:
            left = (deadline - time.monotonic()) * 1000
            if left <= 0:
                raise TimedOut(f"the operation is still pending after {timeout} s")
            if self._comm._enter():
                try:
                    status = lib.ddl_work_wait(self._handle, math.ceil(min(left, _SLICE_MS)))
                finally:
                    self._comm._leave()
                if status == _TIMED_OUT:
                    status = _INPROGRESS
            else:  # closed, which completes its works
                time.sleep(0.001)
                status = lib.ddl_work_test(self._handle)
        self._keep = None
        if status != _OK:
            raise to_error(status)
        result: Array = self._result
        return result

    def done(self) -> bool:
        """Whether the operation is complete, with whatever result. Does not block."""
        if lib.ddl_work_test(self._handle) == _INPROGRESS:
            return False
        self._keep = None
        return True

    def __repr__(self) -> str:
        return f"<ddl_core.Work of {self._comm!r}, {'complete' if self.done() else 'pending'}>"

    def __del__(self) -> None:
        if hasattr(self, "_keep"):
            self._comm._release(self._handle, (self._keep, self._result))
