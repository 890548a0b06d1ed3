# SPDX-License-Identifier: Apache-2.0
"""The state of a comm, as programs, the metrics and the dump read it."""

from __future__ import annotations

import json
from abc import abstractmethod
from contextlib import AbstractContextManager
from typing import Any, cast

from ddl_core._lib import check, ffi, lib


class Readings:
    """A comm that can be read. The comms of native parts have this and no operations.

    rank, size   this process in the group
    """

    rank: int
    size: int

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether the comm was closed."""

    @abstractmethod
    def _held(self) -> AbstractContextManager[Any]:
        """The handle, which is not freed meanwhile. Raises InvalidState if the comm is closed."""

    def report(self) -> dict[str, Any]:
        """The state of the comm: its `pending` operations and how long they have waited, the ranks
        that are `missing` from them, or from a shrink, and for all `members` whether they are alive
        and their last operation. At any time, from any thread, also of a dead comm. Does not
        block."""
        return cast("dict[str, Any]", json.loads(self._text(lib.ddl_comm_report)))

    def trace(self) -> dict[str, Any]:
        """The last 1024 operations and messages with their times, as a trace for Chrome's tracing
        and Perfetto once it is written by json.dump. Times are microseconds of the system's clock,
        so that the events of several ranks can be joined."""
        return cast("dict[str, Any]", json.loads(self._text(lib.ddl_comm_trace)))

    def counters(self) -> dict[str, int]:
        """`operations` (with messages) that have succeeded and their `bytes`; works that are
        `pending`; `deaths` of members that were noticed, and `detection_ns`, the longest that one
        was silent before."""
        native = ffi.new("ddl_counters *", {"struct_size": ffi.sizeof("ddl_counters")})
        with self._held() as handle:
            check(lib.ddl_comm_counters(handle, native))
        names = ("operations", "bytes", "pending", "deaths", "detection_ns")
        return {name: int(getattr(native, name)) for name in names}

    def _text(self, function: Any) -> str:
        """The text of a function that fills a buffer. The text may grow from one call to the
        next."""
        capacity, length = 4096, ffi.new("size_t *")
        while True:
            buffer = ffi.new("char[]", capacity)
            with self._held() as handle:
                status = function(handle, buffer, capacity, length)
            if length[0] < capacity:
                check(status)
                return bytes(ffi.buffer(buffer, length[0])).decode(errors="replace")
            capacity = 2 * int(length[0])
