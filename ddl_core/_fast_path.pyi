# SPDX-License-Identifier: Apache-2.0
# The module of csrc/fast_path.c.
from typing import Any

from typing_extensions import Self

class FastPath:
    """The ddl_comm at this address: a count of its users, and its fast operations.

    An operation returns True if it took the call. `allreduce` returns the array with the result
    instead, and `allreduce_async` a Pending; both return None if they did not take the call.
    """

    def __init__(
        self, handle: int, dropped: list[tuple[int, object]], ops: dict[str, int]
    ) -> None: ...
    @property
    def users(self) -> int: ...
    def __enter__(self) -> bool:
        """Count this thread as a user. Return True if the comm is open."""

    def __exit__(self, *_: object) -> None: ...
    def close(self) -> int: ...
    def drop(self, work: int, keep: object) -> None:
        """Drop a work. If it is pending, add it to `dropped`, with the objects that must stay alive
        until it is complete."""

    def allreduce(self, send: Any, recv: Any, op: Any, options: Any) -> Any: ...
    def reduce_scatter(self, send: Any, recv: Any, op: Any) -> bool: ...
    def broadcast(self, array: Any, root: Any) -> bool: ...
    def allgather(self, send: Any, recv: Any) -> bool: ...
    def barrier(self) -> bool: ...
    def allreduce_async(
        self, comm: Any, kind: type, send: Any, recv: Any, op: Any, options: Any
    ) -> Any:
        """Return a `kind` of Pending, or None if the call was not taken."""

class Pending:
    """A pending operation. It takes the ddl_work * out of the slot at this address, and leaves NULL
    there."""

    def __new__(
        cls, comm: Any, fast_path: FastPath, slot: int, result: Any, keep: object, sender: Any
    ) -> Self: ...
    _comm: Any
    _sender: Any
    _result: Any
    _address: int

    def wait(self, timeout: float | None = None) -> Any: ...
    def done(self) -> bool: ...
    def _look(self, milliseconds: int) -> int:
        """Return the status after at most this time; TIMED_OUT while the operation is pending."""

def address(array: Any) -> int: ...
def test(work: int) -> int: ...
def destroy(work: int) -> None: ...
def fail_exit() -> None:
    """Make the process end with exit code 1 instead of 0."""
