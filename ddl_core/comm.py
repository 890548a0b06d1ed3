# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks, and their operations."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from ddl_core.base import config as configs
from ddl_core.base import fork_guard
from ddl_core.base._lib import check, ffi, lib, to_error
from ddl_core.base.config import INT_MAX, Config, integer
from ddl_core.calls import arguments
from ddl_core.calls.order import Order, contiguous
from ddl_core.diagnosis.live_objects import live_comms
from ddl_core.diagnosis.readings import Readings
from ddl_core.errors import DdlError, Mismatch
from ddl_core.group import Group
from ddl_core.handles.comm_handle import CommHandle, address
from ddl_core.handles.endpoint_handle import EndpointHandle
from ddl_core.handles.work import Work, wait_in_slices
from ddl_core.operations import Operations
from ddl_core.operations_async import AsyncOperations

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ddl_core.options import MessageOptions

_log = logging.getLogger("ddl_core")


class Comm(CommHandle, Operations, AsyncOperations, Readings):
    """A group of ranks at one epoch, created by `init` or by an Endpoint; a context manager.

    All members call the same collective operations in the same order, with equal counts, dtypes,
    ops and roots. A difference raises Mismatch on all of them. Messages (send, recv) are
    independent of this order. Arrays are C-contiguous and in host memory, of any shape: NumPy
    arrays, or objects with the buffer protocol, DLPack or `__array_interface__`. Their dtypes are
    bool, signed and unsigned integers of 8 to 64 bits, float16, bfloat16, float32, float64,
    float8_e4m3fn, float8_e5m2, complex64 and complex128, including the NumPy types of ml_dtypes.
    send and recv of a call have the same dtype. Results are bit-identical on all ranks and from run
    to run.

    Every operation accepts options as keywords, see ddl_core.options: timeout (reaching it kills
    the comm) and name; reductions also accept prescale and postscale. It raises InvalidArgument, or
    Unsupported for a dtype and op that cannot be combined, before it changes anything. It raises
    PeerLost, Mismatch, Aborted or Expired if the comm dies. Waiting releases the GIL. The
    `..._async` forms return a Work at once, and also accept `queued`: see `completed`.

    rank, size               the number of this process in the group, and the number of members
    local_rank, local_size   the same among the members that share memory with this process
    """

    def __init__(
        self,
        handle: Any,
        endpoint: EndpointHandle,
        *,
        owns_endpoint: bool = False,
        parent: Comm | None = None,
    ) -> None:
        super().__init__(handle)
        self._endpoint = endpoint
        self._owns_endpoint = owns_endpoint
        self._parent = parent  # kept alive: it may own the endpoint
        self._closing = threading.RLock()  # recursive: a signal handler may call close
        live_comms.add(self)

    # ---- operations: see Operations ----

    def recv(
        self,
        array: Any,
        source: SupportsIndex | None = None,
        *,
        tag: SupportsIndex = 0,
        **options: Unpack[MessageOptions],
    ) -> int:
        """Receive a message from rank source, or from any rank (None), into array. Return the
        sender's rank. Receives the oldest message with this tag that no other call has received.
        Count and dtype must be the same as on the sender; a difference raises Mismatch.
        """
        call = arguments.recv(array, source, tag, self.size)
        self._run(call, options)
        return int(call.sender[0])

    def group(self) -> Group:
        """Return a new group, which submits its operations as one."""
        return Group(self)

    def order(self, owners: Sequence[SupportsIndex] | int) -> Order:
        """Return the order of sums over logical workers, see `allreduce_ordered`. owners[v] is the
        rank that has worker v. If `owners` is the number of workers V, the workers are contiguous,
        and the first worker of rank r is r * V / size, rounded down."""
        if isinstance(owners, int):
            return contiguous(owners, self.size, "owners")
        return Order(owners, self.size)

    # ---- further comms ----

    @overload
    def split(
        self, color: SupportsIndex, key: SupportsIndex = 0, config: Config | None = None
    ) -> Comm: ...
    @overload
    def split(self, color: None, key: SupportsIndex = 0, config: Config | None = None) -> None: ...
    @overload
    def split(
        self, color: SupportsIndex | None, key: SupportsIndex = 0, config: Config | None = None
    ) -> Comm | None: ...
    def split(
        self, color: SupportsIndex | None, key: SupportsIndex = 0, config: Config | None = None
    ) -> Comm | None:
        """Create a comm of the members that give the same color, ranked by key, then by their rank
        here.

        color is 0 or more. A rank with color None takes part but joins no comm, and gets None. All
        members call it. Errors and config are the same as for `Endpoint.connect`. Closing a comm
        that `init` created closes the comms derived from it; comms derived from other comms stay
        open.
        """
        chosen = -1 if color is None else integer(color, "color", 0, INT_MAX)
        order = integer(key, "key", -INT_MAX - 1, INT_MAX)
        own = configs.native(config)
        return self._derive(lib.ddl_comm_split, chosen, order, own)

    def subset(self, ranks: Sequence[SupportsIndex], config: Config | None = None) -> Comm:
        """Create a comm of the members with the listed ranks, in that order. Only these members
        call it, with equal lists. Otherwise like `split`."""
        listed = [integer(r, f"ranks[{i}]", 0, self.size - 1) for i, r in enumerate(ranks)]
        own = configs.native(config)
        part = self._derive(lib.ddl_comm_subset, ffi.new("int[]", listed), len(listed), own)
        assert part is not None
        return part

    def duplicate(self, config: Config | None = None) -> Comm:
        """Create a second comm of the same members in the same order, with its own operations. All
        members call it. Otherwise like `split`."""
        twin = self._derive(lib.ddl_comm_duplicate, configs.native(config))
        assert twin is not None
        return twin

    # ---- failures and state ----

    def shrink(self, config: Config | None = None) -> Comm:
        """Create a comm of the living members of this dead comm, in their order.

        All of them call it and agree on one list. No process is restarted. Use this to continue
        after PeerLost, and to start again after Aborted or Mismatch. Waits for the others for at
        most config.timeout. Fields that config omits are the same as in this comm. Raises Minority
        if this rank is not among the members that continue: they have declared it dead, or it
        cannot reach more than half of the members that may be alive. Raises InvalidState while the
        comm is alive. You still have to close this comm.
        """
        own = configs.native(config)
        following = self._derive(lib.ddl_comm_shrink, own)
        assert following is not None
        # It replaces this comm, so it must not be closed with it or keep it alive.
        following._owns_endpoint, self._owns_endpoint = self._owns_endpoint, False
        following._parent = self._parent
        return following

    def expel(self, rank: SupportsIndex, reason: str = "") -> None:
        """Declare another rank dead, as if its process had ended. An agent can use this when the
        rank hangs, or a scheduler when it removes the rank's host. May be called at any time, from
        any thread. Does not block.

        Pending and later operations of all members raise PeerLost, which names the rank and the
        reason (its first 127 bytes). The other ranks shrink without waiting for it. If it is alive,
        it gets these errors, too, and Minority from shrink. If two ranks expel each other, at most
        one of them continues. Raises InvalidArgument for this rank itself, and Minority if this
        rank is expelled. Expelling a dead rank confirms that its process has ended. A rank that has
        left is not affected.
        """
        chosen = integer(rank, "rank", 0, self.size - 1)
        with self._held() as handle:
            check(lib.ddl_comm_expel(handle, chosen, reason.encode()))

    def failed(self) -> list[int]:
        """Return the ranks known to be dead, in ascending order. A rank whose death another rank
        has reported appears here a moment after the error."""
        ranks, count = ffi.new("int[]", self.size), ffi.new("int *")
        with self._held() as handle:
            check(lib.ddl_comm_failed(handle, ranks, self.size, count))
        return list(ranks[0 : count[0]])

    # ---- completion ----

    def fd(self) -> int:
        """Return a descriptor that is readable while `completed` can return works, for select and
        asyncio. It is always the same and belongs to the comm: do not read or close it."""
        slot = ffi.new("int *")
        with self._held() as handle:
            check(lib.ddl_comm_fd(handle, slot))
        return int(slot[0])

    def completed(self, limit: int = 64, timeout: float | None = None) -> list[Work[Any]]:
        """Return up to limit finished works that were started with queued=True, in the order in
        which they completed, each once. Waits until there is at least one.

        timeout: seconds; 0 does not wait; None means no limit. Raises TimedOut after `timeout`, and
        InvalidState if no queued work is pending or finished. A work's `wait` returns or raises its
        result.
        """
        limit = integer(limit, "limit", 1, 2**16)
        slots, taken = ffi.new("ddl_work *[]", limit), ffi.new("int *")

        def take(milliseconds: int) -> int:
            with self._held() as handle:
                status: int = lib.ddl_comm_completed(
                    handle, slots, ffi.NULL, limit, milliseconds, taken
                )
                return status

        while True:
            check(wait_in_slices(take, timeout, "no queued work has completed"))
            with self._queue_lock:
                found = [self._queued.pop(address(slots[i]), None) for i in range(taken[0])]
            # If a signal handler interrupted the start of a work, no caller has it.
            if works := [work for work in found if work is not None]:
                return works

    # ---- life ----

    @property
    def error(self) -> DdlError | None:
        """The error that killed this comm (sticky), or None while it is alive. Raises InvalidState
        if it is closed."""
        with self._held() as handle:
            status = lib.ddl_comm_status(handle)
            return to_error(status) if status != 0 else None

    @property
    def closed(self) -> bool:
        """True if `close` was called."""
        return self._handle is None

    def abort(self, reason: str = "") -> None:
        """Kill the comm on all members: pending and later operations raise Aborted with this
        reason. May be called at any time, from any thread. Does not block."""
        with self._held() as handle:
            check(lib.ddl_comm_abort(handle, reason.encode()))

    def close(self) -> None:
        """Leave the group. Pending works first end with Aborted. A second call does nothing.

        After closing, raises Mismatch if another rank is known to have called a different operation
        than this rank, and no call has reported this because both completed. At least the rank that
        closes later detects this.
        """
        if self._inherited():
            return  # a forked child has neither the threads nor the memory of the comm
        with self._closing:  # a concurrent call returns only after this one
            self._endpoint._enter()
            handle, self._handle = self._handle, None
            if handle is not None and not self._can_be_freed(handle):
                return  # the endpoint cannot be freed either
            difference = None if handle is None else self._free(handle)
            self._endpoint._leave()
        if handle is not None and self._owns_endpoint:
            self._endpoint._close()
        if difference is not None:
            raise difference

    def _can_be_freed(self, handle: Any) -> bool:
        """Abort the comm if threads still use the handle. Return True if no thread and no group
        uses it after a short wait."""
        reason = ""
        if self._fast_path.close():
            lib.ddl_comm_abort(handle, b"closed by another thread")
            if not self._all_have_left():
                reason = "a thread is still in the library"
        if not reason and not self._close_groups(handle):
            reason = "a group is still active"
        if reason:
            _log.warning("%r is not freed: %s", self, reason)
        return not reason

    def _free(self, handle: Any) -> DdlError | None:
        """Destroy the comm. Return the mismatch that no call has reported, or None."""
        lib.ddl_comm_destroy(handle)
        difference = to_error(Mismatch.status) if lib.ddl_last_error()[0] != b"\0" else None
        self._reap()
        self._queued.clear()
        self._parent = None
        return difference

    def __enter__(self) -> Comm:
        return self

    def __exit__(self, kind: object, value: object, traceback: object) -> None:
        # During another exception a mismatch is only logged.
        with suppress(*[Mismatch] if value else []):
            self.close()

    def __del__(self) -> None:
        # Without this name, the interpreter is exiting and has emptied this module.
        if hasattr(self, "_closing") and suppress is not None:
            with suppress(Mismatch):  # it is in the log
                self.close()

    __reduce__ = fork_guard.refuse_copy

    def __repr__(self) -> str:
        return f"<ddl_core.Comm, rank {self.rank} of {self.size}{', closed' * self.closed}>"

    def _derive(self, function: Any, *arguments: Any) -> Comm | None:
        def create(_endpoint: Any, slot: Any) -> int:
            with self._held() as handle:
                status: int = function(handle, *arguments, slot)
                return status

        return self._endpoint._join(create, lambda made: Comm(made, self._endpoint, parent=self))
