"""This process's identity and its listening ports, from which comms are made."""

from __future__ import annotations

import atexit
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from types import TracebackType
from typing import Any

from ddl_core import config as configs
from ddl_core import forks
from ddl_core._lib import check, fail_exit, ffi, lib
from ddl_core.comm import Comm
from ddl_core.config import INT_MAX, Config, integer
from ddl_core.errors import InvalidArgument, InvalidState, Mismatch


class Endpoint:
    """This process's identity and its listening ports. Lives across comms; a context manager.

    secret       all processes of a job share it and prove it to each other, "" for none; None:
                 DDL_SECRET, else what is in the file DDL_SECRET_FILE, else ""
    host         the IP address to listen on and to give to peers; None: by `interfaces`
    interfaces   the network interfaces to use: beginnings of names, networks, and with "^" those
                 not to be used, as in "eth,^eth3,10.1.0.0/16"; None: DDL_INTERFACES, else all but
                 those of containers
    ports        to listen on one of, as in "20000-20100"; None: DDL_PORTS, else any free one
    sockets      for each pair of interfaces, 1 to 16; 0: DDL_SOCKETS, else 1
    encrypt      what travels over TCP, on all members or on none; wants a secret; None: whether
                 DDL_ENCRYPT is 1

    Raises InvalidArgument for a host that is no IP address, interfaces of which there are none and
    ports that are no range, a file of the secret that others can read, or encryption without a
    secret, SystemRefused when the
    operating system gives no port or no thread, Unsupported for a secret without libcrypto.
    """

    def __init__(
        self,
        *,
        secret: str | None = None,
        host: str | None = None,
        interfaces: str | None = None,
        ports: str | None = None,
        sockets: int = 0,
        encrypt: bool | None = None,
    ) -> None:
        self._forks = forks.count
        self._lock = threading.RLock()
        self._joining = 0  # comms under way, which need the handle
        self._comms: weakref.WeakSet[Comm] = weakref.WeakSet()
        texts = {"secret": secret, "host": host, "interfaces": interfaces, "ports": ports}
        strings = [_c_string(argument, text) for argument, text in texts.items()]
        config = ffi.new(
            "ddl_endpoint_config *",
            {
                "struct_size": ffi.sizeof("ddl_endpoint_config"),
                "secret": strings[0],
                "host": strings[1],
                "interfaces": strings[2],
                "ports": strings[3],
                "sockets": integer(sockets, "sockets", 0, 2**32 - 1),
                "encrypt": 0 if encrypt is None else 1 if encrypt else -1,
            },
        )
        slot = ffi.new("ddl_endpoint **")
        check(lib.ddl_endpoint_create(config, slot))
        self._handle = slot[0]
        _open.add(self)

    @property
    def address(self) -> bytes:
        """Opaque bytes that every member passes to `connect`, brought there by any means."""
        with self._lock:
            space = ffi.new("char[]", lib.DDL_ADDRESS_MAX)
            length = ffi.new("size_t *")
            check(lib.ddl_endpoint_address(self._live(), space, lib.DDL_ADDRESS_MAX, length))
            return bytes(ffi.buffer(space, length[0]))

    def connect(
        self,
        addresses: Sequence[bytes],
        rank: int,
        config: Config | None = None,
        *,
        owned: bool = False,
    ) -> Comm:
        """Join a group. addresses[i] is the address of rank i, the same list in the same order on
        every member; addresses[rank] is this endpoint's own.

        All members call it; returns when all are connected. With `owned`, closing the comm closes
        this endpoint. Raises InvalidArgument, Unreachable, Refused, and TimedOut after
        config.timeout.
        """
        size = len(addresses)
        rank = integer(rank, "rank", 0, max(size - 1, 0))
        # `views` and `own` live to the end of the call: C pointers keep nothing alive.
        views = [ffi.from_buffer(address) for address in addresses]
        pointers = ffi.new("void *[]", views)
        lengths = ffi.new("size_t[]", [len(address) for address in addresses])
        own = configs.native(config)

        def create(handle: Any, slot: Any) -> int:
            status: int = lib.ddl_comm_create(handle, pointers, lengths, rank, size, own, slot)
            return status

        return self._join_all(create, owned)

    def rendezvous(
        self,
        url: str | None = None,
        rank: int = -1,
        size: int = 0,
        config: Config | None = None,
        *,
        owned: bool = False,
    ) -> Comm:
        """Exchange addresses over TCP and join: rank 0 listens at url ("tcp://host:port"), the
        others connect to it, retrying.

        What is left out is taken from DDL_RENDEZVOUS, DDL_RANK and DDL_SIZE; without these, a comm
        of size 1. Otherwise like `connect`.
        """
        rank = integer(rank, "rank", -1, INT_MAX)
        size = integer(size, "size", 0, INT_MAX)
        where = _c_string("url", url)
        own = configs.native(config)

        def create(handle: Any, slot: Any) -> int:
            status: int = lib.ddl_rendezvous(handle, where, rank, size, own, slot)
            return status

        return self._join_all(create, owned)

    __reduce__ = forks.refuse_copy

    def close(self) -> None:
        """Close its comms, its ports and its thread. Calling it again does nothing. When all is
        closed it raises Mismatch where closing a comm does."""
        if self._forks != forks.count:
            return  # the parent's: neither its threads nor its memory are here
        with self._lock:
            handle, self._handle = self._handle, None
            comms = list(self._comms)
        difference = None
        for comm in comms:
            try:
                comm.close()
            except Mismatch as error:
                difference = difference or error
        with self._lock:
            in_use = self._joining > 0  # the last thread that joins destroys it
        if handle is not None and not in_use:
            lib.ddl_endpoint_destroy(handle)
        if difference is not None:
            raise difference

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._handle is None

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # With an exception under way a mismatch is no news; the log has it.
        with suppress(*[Mismatch] if value else []):
            self.close()

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            with suppress(Mismatch):  # the log has it
                self.close()

    def _live(self) -> Any:
        if self._forks != forks.count:
            raise InvalidState("this process was forked from the one that made the endpoint")
        if self._handle is None:
            raise InvalidState("the endpoint is closed")
        return self._handle

    def _join_all(self, create: Callable[[Any, Any], int], owned: bool) -> Comm:
        comm = self._join(create, owned=owned)
        assert comm is not None
        return comm

    def _join(
        self,
        create: Callable[[Any, Any], int],
        *,
        owned: bool = False,
        parent: Comm | None = None,
    ) -> Comm | None:
        """The comm that `create(endpoint, slot)` makes; None if it makes none."""
        with self._lock:
            handle = self._live()
            self._joining += 1

        def join() -> Comm | None:
            try:
                slot = ffi.new("ddl_comm **")
                check(create(handle, slot))
                if slot[0] == ffi.NULL:
                    return None
                comm = Comm(slot[0], self, owns_endpoint=owned, parent=parent)
                with self._lock:
                    self._comms.add(comm)
                    closed = self._handle is None
                if closed:
                    comm.close()
                    raise InvalidState("the endpoint was closed while it joined")
                return comm
            finally:
                with self._lock:
                    self._joining -= 1
                    last = self._joining == 0 and self._handle is None
                if last:
                    lib.ddl_endpoint_destroy(handle)

        return _interruptible(join)


def _interruptible(join: Callable[[], Comm | None]) -> Comm | None:
    """Run `join` so that Ctrl-C ends the wait, which may take minutes: in a thread of its own when
    this is the main one, since only Python code of that notices signals."""
    if threading.current_thread() is not threading.main_thread():
        return join()
    future: Future[Comm | None] = Future()

    def run() -> None:
        try:
            comm = join()
        except BaseException as error:
            if not future.cancelled():
                future.set_exception(error)
        else:
            try:
                future.set_result(comm)
            except InvalidStateError:  # nobody waits any more
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


def _c_string(argument: str, text: str | None) -> Any:
    if not (text is None or isinstance(text, str)):
        raise InvalidArgument(f"{argument}: {text!r} is no text")
    return ffi.NULL if text is None else ffi.new("char[]", text.encode())


_open: weakref.WeakSet[Endpoint] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Say goodbye before Python goes, so that peers do not take the end for a crash. A mismatch
    that is found only now fails the program by its exit code: an exception would not."""
    for endpoint in list(_open):
        try:
            endpoint.close()
        except Mismatch:  # the log has it
            fail_exit()
