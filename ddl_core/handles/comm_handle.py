# SPDX-License-Identifier: Apache-2.0
"""The handle of a comm, and its users: calls of all threads, works and groups.

Comm adds the operations to it, and Group collects them.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from ddl_core import options
from ddl_core.base import fork_guard
from ddl_core.base._lib import FastPath, check, ffi, lib, work_destroy, work_test
from ddl_core.calls.arguments import OPS, Call
from ddl_core.errors import InvalidState
from ddl_core.handles.work import SLICE_MS, Work

if TYPE_CHECKING:
    from ddl_core.options import MessageOptions, Native

_INPROGRESS = 1  # ddl_status
_CLOSE_TIMEOUT = 2.0  # seconds for other threads to leave the library after an abort

Result = TypeVar("Result")


class CommHandle:
    """The handle of a ddl_comm. `_held` protects it while a caller uses it."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._fork_count = fork_guard.count
        # Works dropped while pending, and their arrays.
        self._dropped: list[tuple[int, object]] = []
        self._fast_path = FastPath(address(handle), self._dropped, OPS)  # counts the users
        self._queue_lock = threading.Lock()  # held while a queued work starts
        self._queued: dict[int, Work[Any]] = {}  # works not yet reported
        self._groups: weakref.WeakSet[GroupHandle] = weakref.WeakSet()
        self.rank: int = lib.ddl_comm_rank(handle)
        self.size: int = lib.ddl_comm_size(handle)
        self.local_rank: int = lib.ddl_comm_local_rank(handle)
        self.local_size: int = lib.ddl_comm_local_size(handle)

    # ---- calls ----

    def _run(self, call: Call[Result], given: MessageOptions) -> Result:
        native = options.native(given, call.buffers, wait_ms=SLICE_MS)
        work = self._submit(call, native, queued=False)
        return call.result if work is None else work.wait()

    def _start(self, call: Call[Result], given: MessageOptions) -> Work[Result]:
        native = options.native(given, call.buffers)
        work = self._submit(call, native, queued=given.get("queued", False))
        assert work is not None  # only a call that waits itself can be complete without a work
        return work

    def start(self, call: Call[Result]) -> Work[Result]:
        """Start a call whose arguments calls/arguments.py has checked. A call may be started again
        once it is complete."""
        work = self._submit(call, options.native({}, call.buffers), queued=False)
        assert work is not None
        return work

    def _submit(self, call: Call[Result], native: Native, queued: bool) -> Work[Result] | None:
        """Submit the call. Return its work, or None if the call is already complete."""
        slot = ffi.new("ddl_work **")
        kept = call if native.residual is None else (call, native.residual)
        with self._fast_path as is_open, self._queue_lock if queued else nullcontext():
            handle = self._live(is_open)
            if self._dropped:
                self._reap()
            try:
                check(call.function(handle, *call.arguments, native.pointer, slot))
                if slot[0] == ffi.NULL:
                    return None
                work: Work[Result] = Work(
                    self, self._fast_path, address(slot), call.result, kept, call.sender
                )
                if queued:
                    self._queued[work._address] = work
            finally:
                # A signal handler has raised an exception before the work was known, and the work
                # still uses its arrays.
                if slot[0] != ffi.NULL:
                    self._fast_path.drop(address(slot[0]), kept)
        return work

    # ---- use of the handle ----

    @contextmanager
    def _held(self) -> Iterator[Any]:
        with self._fast_path as is_open:
            yield self._live(is_open)

    def _live(self, is_open: bool) -> Any:
        """Return the handle. The caller's thread is already counted as a user. Raises InvalidState
        if the comm is closed, or belongs to a parent process."""
        handle = self._handle
        if self._inherited():
            raise InvalidState(
                "this process was forked from the process that created the comm; create a new"
                " one here"
            )
        if not is_open or handle is None:
            raise InvalidState("the comm is closed")
        return handle

    def _inherited(self) -> bool:
        """Return True if this process was forked from the one that created the comm."""
        return self._fork_count != fork_guard.count

    # ---- closing ----

    def _all_have_left(self) -> bool:
        """Wait a short time for the threads that use the handle. Return True if no thread uses it
        any more."""
        deadline = time.monotonic() + _CLOSE_TIMEOUT
        while self._fast_path.users:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        return True

    def _close_groups(self, handle: Any) -> bool:
        """Destroy the groups, which must not outlive the comm. Aborts active groups first. Returns
        False if a group stays active."""
        groups = list(self._groups)
        deadline = time.monotonic() + _CLOSE_TIMEOUT
        while groups and self._under_way(groups):
            lib.ddl_comm_abort(handle, b"closed while a group was under way")
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
        for group in groups:
            group.destroy()
        return True

    def _under_way(self, groups: list[GroupHandle]) -> bool:
        self._reap()
        return bool(self._dropped) or any(group.under_way() for group in groups)

    def _reap(self) -> None:
        """Destroy the dropped works that have completed. Other threads may do the same, or drop
        more, at any moment. An interrupted thread loses none."""
        for entry in list(self._dropped):
            if work_test(entry[0]) != _INPROGRESS:
                with suppress(ValueError):  # another thread was faster
                    self._dropped.remove(entry)
                    work_destroy(entry[0])


class GroupHandle:
    """A ddl_group of a comm, and the calls in it. The Group and its works refer to it, and either
    may outlive the other."""

    def __init__(self, comm: CommHandle) -> None:
        slot = ffi.new("ddl_group **")
        self.comm = comm
        self.calls: list[Call[Any]] = []
        self._work: weakref.ref[Work[None]] | None = None
        self.handle = None
        with comm._held() as handle:
            check(lib.ddl_group_create(handle, slot))
            self.handle = slot[0]
            comm._groups.add(self)

    def submitted(self, work: Work[None]) -> None:
        self._work = weakref.ref(work)

    def under_way(self) -> bool:
        """Return True if the group's work is still referenced and pending."""
        work = self._work() if self._work else None
        return work is not None and not work.done()

    def destroy(self) -> None:
        """Destroy the group, which must not be active."""
        handle, self.handle = self.handle, None
        if handle is not None and not self.comm._inherited():
            lib.ddl_group_destroy(handle)
        self.calls.clear()

    def __del__(self) -> None:
        self.destroy()


def address(handle: Any) -> int:
    """Return a C pointer's value as an int."""
    return int(ffi.cast("uintptr_t", handle))
