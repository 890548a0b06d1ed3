# SPDX-License-Identifier: Apache-2.0
"""The state of a comm that programs, the metrics and the dump can read."""

from __future__ import annotations

import json
from abc import abstractmethod
from contextlib import AbstractContextManager
from typing import Any, cast

from ddl_core.base._lib import check, ffi, lib


class Readings:
    """A comm whose state can be read. The comms of native parts have this interface, but no
    operations.

    rank, size   the number of this process in the group, and the number of members
    """

    rank: int
    size: int

    @property
    @abstractmethod
    def closed(self) -> bool:
        """True if the comm was closed."""

    @abstractmethod
    def _held(self) -> AbstractContextManager[Any]:
        """Return a context manager that yields the handle, which is not freed within its block.
        Raises InvalidState if the comm is closed."""

    def report(self) -> dict[str, Any]:
        """Return the state of the comm.

        pending   the pending operations, and how long they have waited
        missing   the ranks that these operations or a shrink wait for
        members   for each member, whether it is alive, and its last operation

        May be called at any time, from any thread, even for a dead comm. Does not block.
        """
        return cast("dict[str, Any]", json.loads(self._text(lib.ddl_comm_report)))

    def trace(self) -> dict[str, Any]:
        """Return the last 1024 operations and messages with their times. json.dump writes them as a
        trace for Chrome's tracing and Perfetto. Times are microseconds of the system's clock, so
        that the events of several ranks can be joined."""
        return cast("dict[str, Any]", json.loads(self._text(lib.ddl_comm_trace)))

    def counters(self) -> dict[str, int]:
        """Return the comm's counters.

        operations     operations that have succeeded, including messages
        bytes          the bytes of these operations
        pending        pending works
        deaths         members whose death was detected
        detection_ns   the longest silence of a member before its death was detected
        """
        native = ffi.new("ddl_counters *", {"struct_size": ffi.sizeof("ddl_counters")})
        with self._held() as handle:
            check(lib.ddl_comm_counters(handle, native))
        names = ("operations", "bytes", "pending", "deaths", "detection_ns")
        return {name: int(getattr(native, name)) for name in names}

    def _text(self, function: Any) -> str:
        """Return the text of a function that fills a buffer. Calls it again with a larger buffer
        while the text does not fit."""
        capacity, length = 4096, ffi.new("size_t *")
        while True:
            buffer = ffi.new("char[]", capacity)
            with self._held() as handle:
                status = function(handle, buffer, capacity, length)
            if length[0] < capacity:
                check(status)
                return bytes(ffi.buffer(buffer, length[0])).decode(errors="replace")
            capacity = 2 * int(length[0])
