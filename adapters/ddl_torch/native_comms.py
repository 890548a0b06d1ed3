# SPDX-License-Identifier: Apache-2.0
"""The comms of the native part, for ddl_core's metrics and dump."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ddl_core.base._lib import ffi
from ddl_core.diagnosis.live_objects import live_comms
from ddl_core.diagnosis.readings import Readings
from ddl_core.errors import InvalidState

_known: dict[Any, NativeComm] = {}  # by native group; live_comms keeps no references


class NativeComm(Readings):
    """The comm of a process group."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self.rank, self.size = group.rank, group.size

    @property
    def closed(self) -> bool:
        return bool(self._group.closed)

    @contextmanager
    def _held(self) -> Iterator[Any]:
        use = self._group.use()  # keeps the comm open until this function returns
        if use is None:
            raise InvalidState("the process group has been shut down")
        try:
            yield ffi.cast("ddl_comm *", use.comm)
        finally:
            del use  # in Python 3.10 an exception's traceback would keep it


def add_new(native: Any) -> None:
    """Add the native groups that are new since the last call to ddl_core's live comms."""
    for group in [group for group in list(_known) if group.closed]:  # other threads may add groups
        _known.pop(group, None)
    for group in native.groups():
        if group not in _known:
            comm = NativeComm(group)
            if _known.setdefault(group, comm) is comm:  # no other thread was faster
                live_comms.add(comm)
