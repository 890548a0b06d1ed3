# SPDX-License-Identifier: Apache-2.0
"""The identity of this process and its listening ports, from which comms are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ddl_core.base import config as configs
from ddl_core.base import fork_guard
from ddl_core.base._lib import check, ffi, lib
from ddl_core.base.config import INT_MAX, Config, integer
from ddl_core.comm import Comm
from ddl_core.errors import InvalidArgument, Mismatch
from ddl_core.handles.endpoint_handle import EndpointHandle


class Endpoint(EndpointHandle):
    """The identity of this process and its listening ports. Outlives its comms; a context manager.

    secret       the secret of the job; its processes prove to each other that they know it. "": no
                 secret. None: DDL_SECRET, else the text of the file DDL_SECRET_FILE, else ""
    host         the IP address to listen on and to send to peers; None: as `interfaces` selects
    interfaces   the network interfaces to use: beginnings of names, or networks; a leading "^"
                 excludes them, as in "eth,^eth3,10.1.0.0/16". None: DDL_INTERFACES, else all except
                 the interfaces of containers and 169.254.0.0/16
    ports        the range of ports to choose from, such as "20000-20100"; None: DDL_PORTS, else any
    sockets      the number of sockets for each pair of interfaces, 1 to 16; 0: DDL_SOCKETS, else 1
    encrypt      True to encrypt TCP, equal on all members; requires a secret. None: True if
                 DDL_ENCRYPT is 1

    Raises
        InvalidArgument  for a host that is not an IP address, interfaces that do not exist, ports
                         that are not a range, a secret's file that other users can read, or
                         encryption without a secret
        SystemRefused    if the operating system gives no port or no thread
        Unsupported      for a secret without libcrypto
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
        super().__init__(slot[0])

    @property
    def address(self) -> bytes:
        """The address of this endpoint, as opaque bytes. Every member passes it to `connect`, so
        the program must send it to the members."""
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
        """Join a group. addresses[i] is the address of rank i: the same list in the same order on
        every member. addresses[rank] is this endpoint's own.

        All members call it. Returns when all are connected. With `owned`, closing the comm closes
        this endpoint. Raises InvalidArgument, Unreachable, Refused, and TimedOut after
        config.timeout.
        """
        size = len(addresses)
        rank = integer(rank, "rank", 0, max(size - 1, 0))
        # `views` and `own` stay alive to the end of the call, since C pointers keep nothing alive.
        views = [ffi.from_buffer(address) for address in addresses]
        pointers = ffi.new("void *[]", views)
        lengths = ffi.new("size_t[]", [len(address) for address in addresses])
        own = configs.native(config)

        def create(handle: Any, slot: Any) -> int:
            status: int = lib.ddl_comm_create(handle, pointers, lengths, rank, size, own, slot)
            return status

        return self._connect(create, owned)

    def rendezvous(
        self,
        url: str | None = None,
        rank: int = -1,
        size: int = 0,
        config: Config | None = None,
        *,
        owned: bool = False,
    ) -> Comm:
        """Exchange addresses over TCP and join. Rank 0 listens at url ("tcp://host:port"). The
        other ranks connect to it, and retry.

        The defaults are DDL_RENDEZVOUS, DDL_RANK and DDL_SIZE; without these, a comm of size 1.
        Otherwise like `connect`.
        """
        rank = integer(rank, "rank", -1, INT_MAX)
        size = integer(size, "size", 0, INT_MAX)
        where = _c_string("url", url)
        own = configs.native(config)

        def create(handle: Any, slot: Any) -> int:
            status: int = lib.ddl_rendezvous(handle, where, rank, size, own, slot)
            return status

        return self._connect(create, owned)

    __reduce__ = fork_guard.refuse_copy

    def close(self) -> None:
        """Close its comms, its ports and its thread. A second call does nothing. Raises Mismatch at
        the end if the close of a comm raised it."""
        self._close()

    @property
    def closed(self) -> bool:
        """True if `close` was called."""
        return self._handle is None

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, kind: object, value: object, traceback: object) -> None:
        # During another exception a mismatch is only logged.
        with suppress(*[Mismatch] if value else []):
            self.close()

    def _connect(self, create: Callable[[Any, Any], int], owned: bool) -> Comm:
        comm = self._join(create, lambda handle: Comm(handle, self, owns_endpoint=owned))
        assert comm is not None
        return comm


def _c_string(argument: str, text: str | None) -> Any:
    if not (text is None or isinstance(text, str)):
        raise InvalidArgument(f"{argument} is {text!r}; must be a str")
    return ffi.NULL if text is None else ffi.new("char[]", text.encode())
