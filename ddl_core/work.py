"""One asynchronous operation."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ddl_core._lib import to_error, work_test
from ddl_core.errors import InvalidArgument, TimedOut

if TYPE_CHECKING:
    from ddl_core.comm import Comm

_OK, _INPROGRESS, _TIMED_OUT = 0, 1, -20  # ddl_status
_SLICE_MS = 100  # how long one call waits, so that Ctrl-C is noticed in between

Array = TypeVar("Array")


def wait_in_slices(look: Callable[[int], int], timeout: float | None, pending: str) -> int:
    """`look(milliseconds)` until it returns anything but TIMED_OUT, and then that status.

    Raises TimedOut, saying `pending`, after `timeout` seconds; 0 only looks, None: no limit.
    """
    if timeout is not None and not timeout >= 0:
        raise InvalidArgument(f"timeout: {timeout!r} is not a number of seconds from 0 on")
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    status = look(0)
    while status == _TIMED_OUT:
        left = (deadline - time.monotonic()) * 1000
        if left <= 0:
            raise TimedOut(f"{pending} after {timeout} s")
        status = look(math.ceil(min(left, _SLICE_MS)))
    return status


class Work(Generic[Array]):
    """An operation under way. Its arrays must not be touched until it is complete; they are kept
    alive until then, also when the Work itself is dropped.

    Made by the `..._async` methods of Comm and Group. Any thread may wait.
    """

    __slots__ = ("__weakref__", "_address", "_comm", "_keep", "_result", "_sender")

    def __init__(
        self, comm: Comm, address: int, result: Array, keep: object, sender: Any = None
    ) -> None:
        self._comm = comm
        self._address = address  # of the ddl_work
        self._result = result
        self._keep = keep  # alive until it is complete
        self._sender = sender  # where a receive stores the rank that it came from

    def wait(self, timeout: float | None = None) -> Array:
        """Wait until the operation is complete and return the array that holds its result (None if
        there is none). Waiting again returns, or raises, the same.

        timeout: seconds, 0 only looks; None: no limit but the operation's own.
        Raises TimedOut after `timeout`, the work then being pending still; else what the operation
        ended with: PeerLost, Mismatch, Aborted, Expired.
        """
        status = None
        if timeout is None:
            status = self._comm._gate.wait(self._address, _SLICE_MS)
        if status is None or status == _TIMED_OUT:
            status = wait_in_slices(self._look, timeout, "the operation is still pending")
        self._keep = None
        if status != _OK:
            raise to_error(status)
        result: Array = self._result
        return result

    def done(self) -> bool:
        """Whether the operation is complete, with whatever result. Does not block."""
        if work_test(self._address) == _INPROGRESS:
            return False
        self._keep = None
        return True

    def _look(self, milliseconds: int) -> int:
        """The status after at most so long; TIMED_OUT while it is pending."""
        if milliseconds == 0:
            status = work_test(self._address)
            return _TIMED_OUT if status == _INPROGRESS else status
        waited = self._comm._gate.wait(self._address, milliseconds)
        if waited is None:
            time.sleep(0.001)  # closed, which completes its works
            return _TIMED_OUT
        return waited

    @property
    def source(self) -> int | None:
        """The rank that a message came from, once it has been received; else None."""
        if self._sender is None or not self.done() or self._sender[0] < 0:
            return None
        return int(self._sender[0])

    def __repr__(self) -> str:
        return f"<ddl_core.Work of {self._comm!r}, {'complete' if self.done() else 'pending'}>"

    def __del__(self) -> None:
        if hasattr(self, "_keep"):
            self._comm._release(self._address, (self._keep, self._result))
