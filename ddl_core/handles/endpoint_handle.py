# SPDX-License-Identifier: Apache-2.0
"""The handle of an endpoint, and its users: the comms created from it.

Endpoint creates the first comms, and Comm creates further comms.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from ddl_core.base import fork_guard
from ddl_core.base._lib import check, fail_exit, ffi, lib
from ddl_core.errors import InvalidState, Mismatch


class Closable(Protocol):
    def close(self) -> None: ...


Made = TypeVar("Made", bound=Closable)


class EndpointHandle:
    """The handle of a ddl_endpoint, which is closed after its comms."""

    def __init__(self, handle: Any) -> None:
        self._fork_count = fork_guard.count
        self._lock = threading.RLock()
        self._users = 0  # threads that join or close, and comms that cannot be freed
        self._comms: weakref.WeakSet[Closable] = weakref.WeakSet()
        self._handle = handle
        self._undestroyed = handle
        _open.add(self)

    def _live(self) -> Any:
        if self._fork_count != fork_guard.count:
            raise InvalidState(
                "this process was forked from the process that created the endpoint; create a new"
                " one here"
            )
        if self._handle is None:
            raise InvalidState("the endpoint is closed")
        return self._handle

    def _allocate(self, nbytes: int) -> Any:
        """Return a buffer of at least `nbytes` from ddl_alloc. It is freed with its last
        reference."""
        slot = ffi.new("void **")
        with self._lock:
            check(lib.ddl_alloc(self._live(), max(nbytes, 1), slot))
        memory = ffi.gc(ffi.cast("char *", slot[0]), lib.ddl_free)
        return ffi.buffer(memory, max(nbytes, 1))

    def _join(self, create: Callable[[Any, Any], int], make: Callable[[Any], Made]) -> Made | None:
        """Create a ddl_comm with `create(endpoint, slot)`, which stores it in the slot. Return
        `make(comm)`, or None if `create` stores no comm."""
        with self._lock:
            handle = self._live()
            self._enter()

        def join() -> Made | None:
            try:
                slot = ffi.new("ddl_comm **")
                check(create(handle, slot))
                if slot[0] == ffi.NULL:
                    return None
                comm = make(slot[0])
                with self._lock:
                    self._comms.add(comm)
                    closed = self._handle is None
                if closed:
                    comm.close()
                    raise InvalidState("the endpoint was closed while it was joining")
                return comm
            finally:
                self._leave()

        return _interruptible(join)

    def _enter(self) -> None:
        """Prevent the destruction of the endpoint until `_leave`. The endpoint may be closed in the
        meantime."""
        with self._lock:
            self._users += 1

    def _leave(self) -> None:
        """End the effect of one `_enter`. If the endpoint is closed, the last user destroys it."""
        with self._lock:
            self._users -= 1
            if self._users or self._handle is not None:
                return
            handle, self._undestroyed = self._undestroyed, None
        if handle is not None:
            lib.ddl_endpoint_destroy(handle)

    def _close(self) -> None:
        if self._fork_count != fork_guard.count:
            return  # a forked child has neither the threads nor the memory of the endpoint
        with self._lock:
            self._enter()  # otherwise a thread that fails to join would destroy it before its comms
            self._handle = None
            comms = list(self._comms)
        difference = None
        for comm in comms:
            try:
                comm.close()
            except Mismatch as error:
                difference = difference or error
        self._leave()
        if difference is not None:
            raise difference

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            with suppress(Mismatch):  # it is in the log
                self._close()


def _interruptible(join: Callable[[], Made | None]) -> Made | None:
    """Run `join` so that Ctrl-C ends the wait, which may take minutes.

    Only Python code of the main thread notices signals, so `join` runs in another thread.
    """
    if threading.current_thread() is not threading.main_thread():
        return join()
    future: Future[Made | None] = Future()

    def run() -> None:
        try:
            comm = join()
        except BaseException as error:
            if not future.cancelled():
                future.set_exception(error)
        else:
            try:
                future.set_result(comm)
            except InvalidStateError:  # the caller has stopped waiting
                if comm is not None:
                    comm.close()

    try:
        threading.Thread(target=run, name="ddl-join", daemon=True).start()
        return future.result()
    except KeyboardInterrupt:
        if not future.cancel() and future.exception() is None:
            comm = future.result()
            if comm is not None:
                comm.close()
        raise


_open: weakref.WeakSet[EndpointHandle] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Leave all comms before Python exits, so that peers do not report a crash.

    If this detects a mismatch, the program exits with code 1. An exception would not change the
    exit code here.
    """
    for endpoint in list(_open):
        try:
            endpoint._close()
        except Mismatch:  # it is in the log
            fail_exit()
