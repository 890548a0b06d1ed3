"""A group of ranks, and the operations they do together."""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from ddl_core import arguments, forks
from ddl_core._lib import check, ffi, lib, to_error
from ddl_core.arguments import Call
from ddl_core.errors import DdlError, InvalidState
from ddl_core.work import Work

if TYPE_CHECKING:
    from ddl_core.endpoint import Endpoint

_INPROGRESS = 1  # ddl_status
_CLOSE_PATIENCE = 2.0  # seconds for other threads to leave the library after an abort

_log = logging.getLogger("ddl_core")

Array = TypeVar("Array")


class Comm:
    """One group of ranks at one epoch. Made by `init` or by an Endpoint; a context manager.

    All members call the same operations in the same order, with equal counts, dtypes, ops and
    roots; a difference raises Mismatch on all of them. Arrays are C-contiguous ones in host memory,
    of dtype int8, uint8, int32, int64, float16, bfloat16, float32 or float64, given as NumPy
    arrays or by the buffer protocol, DLPack or `__array_interface__`.

    Every operation takes `timeout`, its own limit in seconds (None: the comm's; reaching it kills
    the comm), raises InvalidArgument before it touches anything, and PeerLost, Mismatch, Aborted or
    Expired when the comm dies. Waiting releases the GIL. The `..._async` forms return a Work at
    once; their arrays must not be touched before the work is complete.

    rank, size               this process in the group
    local_rank, local_size   the same among the members proven to share this one's memory
    """

    def __init__(self, handle: Any, endpoint: Endpoint, *, owns_endpoint: bool = False) -> None:
        self._handle = handle
        self._endpoint = endpoint
        self._owns_endpoint = owns_endpoint
        self._forks = forks.count
        # Guards _handle and _inside, the number of threads that are in the library with it. Its
        # lock is recursive: a signal handler may call abort.
        self._idle = threading.Condition()
        self._inside = 0
        self._dropped: list[tuple[Any, object]] = []  # works given up while pending, their arrays
        self.rank: int = lib.ddl_comm_rank(handle)
        self.size: int = lib.ddl_comm_size(handle)
        self.local_rank: int = lib.ddl_comm_local_rank(handle)
        self.local_size: int = lib.ddl_comm_local_size(handle)

    # ---- operations ----

    def allreduce(
        self,
        send: Array,
        recv: Array | None = None,
        *,
        op: str = "sum",
        timeout: float | None = None,
    ) -> Array:
        """recv[i] = op over all ranks of send[i]; returns recv. Both have the same count and dtype.

        op is "sum", "average", "min", "max" or "product". Without recv the result replaces send,
        which is returned.
        """
        return self._run(arguments.allreduce(send, recv, op), timeout)

    def allreduce_async(
        self,
        send: Array,
        recv: Array | None = None,
        *,
        op: str = "sum",
        timeout: float | None = None,
    ) -> Work[Array]:
        """Start `allreduce`."""
        return self._start(arguments.allreduce(send, recv, op), timeout)

    def reduce_scatter(
        self,
        send: Array,
        recv: Array | None = None,
        *,
        op: str = "sum",
        timeout: float | None = None,
    ) -> Array:
        """recv[i] = op over all ranks of send[rank * count + i], for i < count; returns recv.

        send holds size * count elements, recv count of the same dtype. Without recv the result lies
        at rank * count of send, whose other blocks stay as they were; send is returned.
        """
        return self._run(arguments.reduce_scatter(send, recv, op, self.size), timeout)

    def reduce_scatter_async(
        self,
        send: Array,
        recv: Array | None = None,
        *,
        op: str = "sum",
        timeout: float | None = None,
    ) -> Work[Array]:
        """Start `reduce_scatter`."""
        return self._start(arguments.reduce_scatter(send, recv, op, self.size), timeout)

    def allgather(
        self, send: Array, recv: Array | None = None, *, timeout: float | None = None
    ) -> Array:
        """recv[r * count + i] = rank r's send[i], for i < count; returns recv.

        send holds count elements, recv size * count of the same dtype. Without recv, send holds
        size * count elements, this rank's own at rank * count; it is filled and returned.
        """
        return self._run(arguments.allgather(send, recv, self.size), timeout)

    def allgather_async(
        self, send: Array, recv: Array | None = None, *, timeout: float | None = None
    ) -> Work[Array]:
        """Start `allgather`."""
        return self._start(arguments.allgather(send, recv, self.size), timeout)

    def broadcast(self, array: Array, root: int = 0, *, timeout: float | None = None) -> Array:
        """array[i] on every rank = root's array[i]; returns array."""
        return self._run(arguments.broadcast(array, root, self.size), timeout)

    def broadcast_async(
        self, array: Array, root: int = 0, *, timeout: float | None = None
    ) -> Work[Array]:
        """Start `broadcast`."""
        return self._start(arguments.broadcast(array, root, self.size), timeout)

    def barrier(self, *, timeout: float | None = None) -> None:
        """Return on no rank before every rank has called it."""
        self._run(arguments.barrier(), timeout)

    def barrier_async(self, *, timeout: float | None = None) -> Work[None]:
        """Start `barrier`."""
        return self._start(arguments.barrier(), timeout)

    # ---- life ----

    @property
    def error(self) -> DdlError | None:
        """What killed this comm (sticky), None while it works. InvalidState when it is closed."""
        handle = self._hold()
        try:
            status = lib.ddl_comm_status(handle)
            return to_error(status) if status != 0 else None
        finally:
            self._leave()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._handle is None

    def abort(self, reason: str = "") -> None:
        """Kill the comm everywhere: pending and later operations of all members raise Aborted with
        this reason. At any time, from any thread; does not block."""
        handle = self._hold()
        try:
            check(lib.ddl_comm_abort(handle, reason.encode()))
        finally:
            self._leave()

    def close(self) -> None:
        """Leave the group. Pending works end with Aborted first. Calling it again does nothing."""
        if self._forks != forks.count:
            return  # the parent's: neither its threads nor its memory are here
        with self._idle:
            handle, self._handle = self._handle, None
            if handle is None:
                return
            if self._inside:
                lib.ddl_comm_abort(handle, b"closed by another thread")
                if not self._idle.wait_for(lambda: self._inside == 0, _CLOSE_PATIENCE):
                    _log.warning("%r: a thread is still in the library; not freed", self)
                    return
        lib.ddl_comm_destroy(handle)
        self._reap()
        if self._owns_endpoint:
            self._endpoint.close()

    def __enter__(self) -> Comm:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "local_size"):
            self.close()

    def __repr__(self) -> str:
        return f"<ddl_core.Comm, rank {self.rank} of {self.size}{', closed' * self.closed}>"

    # ---- calls ----

    def _run(self, call: Call[Array], timeout: float | None) -> Array:
        options = arguments.options(timeout)
        handle = self._hold()
        try:
            check(call.function(handle, *call.arguments, options, ffi.NULL))
        finally:
            self._leave()
        return call.result

    def _start(self, call: Call[Array], timeout: float | None) -> Work[Array]:
        options = arguments.options(timeout)
        slot = ffi.new("ddl_work **")
        handle = self._hold()
        try:
            if self._dropped:
                self._reap()
            check(call.function(handle, *call.arguments, options, slot))
            return Work(self, slot[0], call.result, call.keep)
        finally:
            self._leave()

    def _enter(self) -> Any:
        """Count this thread as inside; the handle, or None (and not counted) when closed."""
        if self._forks != forks.count:
            raise InvalidState("this process was forked from the one that made the comm")
        with self._idle:
            if self._handle is not None:
                self._inside += 1
            return self._handle

    def _hold(self) -> Any:
        handle = self._enter()
        if handle is None:
            raise InvalidState("the comm is closed")
        return handle

    def _leave(self) -> None:
        with self._idle:
            self._inside -= 1
            if self._handle is None:
                self._idle.notify_all()

    def _release(self, work: Any, keep: object) -> None:
        """Take back a work that nobody refers to any more."""
        if self._forks != forks.count:
            return
        if lib.ddl_work_test(work) == _INPROGRESS:
            self._dropped.append((work, keep))
        else:
            lib.ddl_work_destroy(work)

    def _reap(self) -> None:
        dropped, self._dropped = self._dropped, []
        for work, keep in dropped:
            self._release(work, keep)
