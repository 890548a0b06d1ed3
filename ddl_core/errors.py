# SPDX-License-Identifier: Apache-2.0
"""One exception class per status of ddl.h, grouped as there: by what the caller does next.

    DdlError
        UsageError     fix the call: it was refused, no buffer was touched
        RetryError     retry or give up: existing objects are as they were
        CommDead       this comm is dead; close it and, to go on, make another
        InternalError  report it

Where a built-in exception fits (ValueError, TimeoutError, ...), a class is that as well.
"""

from __future__ import annotations

from typing import ClassVar


class DdlError(Exception):
    """Base of all errors of libddl.

    `status` is the value from ddl.h, `message` says what was wrong, with ranks, hosts and values.
    """

    status: ClassVar[int] = 0

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message


class UsageError(DdlError):
    """The call was refused: nothing changed and no buffer was touched. Fix the call."""


class RetryError(DdlError):
    """The call failed, existing objects are as they were. Retry or give up."""


class CommDead(DdlError):
    """The comm is dead, and every later call on it ends like this one. Close it."""


class InvalidArgument(UsageError, ValueError):
    """An argument is out of range; the message names it and its value."""

    status = -1


class InvalidState(UsageError, RuntimeError):
    """The object is in a state that does not allow the call."""

    status = -2


class Unsupported(UsageError, NotImplementedError):
    """Well formed, but this libddl or this installation cannot do it."""

    status = -3


class TimedOut(RetryError, TimeoutError):
    """The given time passed; a work stays pending and its arrays stay in use."""

    status = -20


class OutOfMemory(RetryError, MemoryError):
    """There is not enough memory."""

    status = -21


class Unreachable(RetryError, ConnectionError):
    """An address does not answer."""

    status = -22


class Refused(RetryError, ConnectionRefusedError):
    """A peer refused us: another version, another job, a wrong rank."""

    status = -23


class SystemRefused(RetryError, OSError):
    """The operating system refused a resource."""

    status = -24


class PeerLost(CommDead, ConnectionError):
    """A member died or left while it was needed; the message names it."""

    status = -40


class Mismatch(CommDead):
    """Members called different operations; the message says which."""

    status = -41


class Aborted(CommDead):
    """A member called Comm.abort; the message holds its reason."""

    status = -42


class Expired(CommDead, TimeoutError):
    """An operation ran past its own time limit."""

    status = -43


class Minority(CommDead):
    """From Comm.shrink: the others go on without this rank."""

    status = -44


class InternalError(DdlError, RuntimeError):
    """libddl itself is wrong. Report it."""

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
