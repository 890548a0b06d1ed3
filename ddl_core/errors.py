# SPDX-License-Identifier: Apache-2.0
"""The exceptions of libddl: one class per status of ddl.h, grouped by the caller's next action.

    DdlError
        UsageError     fix the call: it was rejected, and no buffer has changed
        RetryError     retry or give up: existing objects have not changed
        CommDead       this comm is dead; close it, and create another one to continue
        InternalError  report it

If a built-in exception fits (ValueError, TimeoutError, ...), a class is also a subclass of it.
"""

from __future__ import annotations

from typing import ClassVar


class DdlError(Exception):
    """The base class of all errors of libddl.

    `status` is the value from ddl.h. `message` describes the error, with ranks, hosts and values.
    """

    status: ClassVar[int] = 0

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message


class UsageError(DdlError):
    """The call was rejected: nothing has changed, including all buffers. Fix the call."""


class RetryError(DdlError):
    """The call failed, and existing objects have not changed. Retry or give up."""


class CommDead(DdlError):
    """The comm is dead, and every later call on it raises this error, too. Close it."""


class InvalidArgument(UsageError, ValueError):
    """An argument is out of range; the message names it and its value."""

    status = -1


class InvalidState(UsageError, RuntimeError):
    """The object is in a state that does not allow the call."""

    status = -2


class Unsupported(UsageError, NotImplementedError):
    """The arguments are valid, but this libddl or this installation does not support the call."""

    status = -3


class TimedOut(RetryError, TimeoutError):
    """The given time limit passed. A work stays pending, and its arrays stay in use."""

    status = -20


class OutOfMemory(RetryError, MemoryError):
    """The memory is exhausted."""

    status = -21


class Unreachable(RetryError, ConnectionError):
    """An address does not respond."""

    status = -22


class Refused(RetryError, ConnectionRefusedError):
    """A peer rejected the connection: another version, another job, or a wrong rank."""

    status = -23


class SystemRefused(RetryError, OSError):
    """The operating system denied a resource."""

    status = -24


class PeerLost(CommDead, ConnectionError):
    """A member died or left while it was needed; the message names it."""

    status = -40


class Mismatch(CommDead):
    """Members called different operations; the message shows them."""

    status = -41


class Aborted(CommDead):
    """A member called Comm.abort. The message has its reason."""

    status = -42


class Expired(CommDead, TimeoutError):
    """An operation ran past its own time limit."""

    status = -43


class Minority(CommDead):
    """Comm.shrink failed: the other members continue without this rank."""

    status = -44


class InternalError(DdlError, RuntimeError):
    """libddl has a bug. Report it."""

    status = -60


BY_STATUS: dict[int, type[DdlError]] = {
    cls.status: cls
    for cls in (
        *(InvalidArgument, InvalidState, Unsupported),
        *(TimedOut, OutOfMemory, Unreachable, Refused, SystemRefused),
        *(PeerLost, Mismatch, Aborted, Expired, Minority),
        InternalError,
    )
}
