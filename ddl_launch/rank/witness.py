# SPDX-License-Identifier: Apache-2.0
"""The witness of a host, which reports to endpoints that a process of this host has ended. The
kernel closes the connection of a dead process, and no network between hosts can forge that.

Scripts import this module, so it imports no other module of the project. DDL_WITNESS names an
abstract unix stream socket, without the leading zero byte. Each endpoint of libddl connects to it.
A record has 24 bytes: a word of 8 bytes and the endpoint's id of 16 bytes.

    ddlwitn1    from an endpoint, first: its id
    ddlleave    from an endpoint, before it is destroyed: ignore its end
    ddlcontn    from an endpoint: it may continue without members of a comm. The record has the
                first half of the comm's id, and the number of the attempt by which its survivors
                agreed. The witness sends these 16 bytes to all others before it reports the end of
                the endpoint
    ddlended    from the witness: the process of this endpoint has ended

A new endpoint also gets the last reports: the witness may read the endpoint's first record after it
has reported an end that happened after the endpoint connected.

On several hosts each rank has its own witness. Its `on_end` forwards its reports to ddlrun, which
passes them to `spread` of all others.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import socket
import struct
from collections import deque
from collections.abc import Callable

VARIABLE = "DDL_WITNESS"
HELLO, LEAVE, ENDED = b"ddlwitn1", b"ddlleave", b"ddlended"
CONTINUES = b"ddlcontn"
ID = 16  # bytes
_RECORD = 8 + ID
MOST_BYTES = ID * 10  # the most bytes of a report
_MOST = 4096  # the most connections
_REMEMBERED = 64  # ends that are reported to late endpoints
_CONTINUED = 8  # the most comms kept for an endpoint; _ALL stands for all others
_ALL = struct.pack("=QQ", 0, 2**32 - 1)
_CREDENTIALS = struct.Struct("@3i")  # pid, uid, gid


class _Endpoint:
    """The connection of an endpoint, whose id is known after its first record."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.received = b""  # the beginning of a record
        self.id: bytes | None = None
        self.leaves = False
        self.continued: dict[bytes, bytes] = {}  # by comm

    @property
    def report(self) -> bytes:
        """The report of the endpoint's end: its id, and the data of its CONTINUES records."""
        return (self.id or b"") + b"".join(self.continued.values())

    def take(self, data: bytes) -> bool:
        """Handle received data. Return False if it has an invalid record."""
        self.received += data
        while len(self.received) >= _RECORD:
            word, own = self.received[:8], self.received[8:_RECORD]
            self.received = self.received[_RECORD:]
            if word == HELLO and self.id is None:
                self.id = own
            elif word == LEAVE and own == self.id:
                self.leaves = True
            elif word == CONTINUES and self.id is not None:
                self.continued.pop(own[:8], None)
                self.continued[own[:8]] = own
                if len(self.continued) > _CONTINUED:
                    del self.continued[next(key for key in self.continued if key != _ALL[:8])]
                    self.continued[_ALL[:8]] = _ALL
            else:
                return False
        return True


class Witness:
    """The witness of this host's endpoints, run by callbacks of `selector`.

    `name` is for DDL_WITNESS. It is "" if the system has no abstract sockets; the witness then
    reports nothing.

    Keeps no data for a connection that does not read: the connection is closed when its socket is
    full.
    """

    def __init__(
        self, selector: selectors.BaseSelector, on_end: Callable[[bytes], None] | None = None
    ) -> None:
        self.name = f"ddl-witness-{secrets.token_hex(16)}"
        self._selector = selector
        self._on_end = on_end
        self._endpoints: set[_Endpoint] = set()
        self._ended: deque[bytes] = deque(maxlen=_REMEMBERED)
        self._listener: socket.socket | None = None
        try:
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._listener.setblocking(False)
            self._listener.bind(b"\0" + self.name.encode())
            self._listener.listen(socket.SOMAXCONN)
        except OSError:
            self.close()
            self.name = ""
            return
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def spread(self, report: bytes) -> None:
        """Report the end of a process, of this host or another one, to all endpoints here."""
        self._ended.append(report)
        for other in list(self._endpoints):
            if other.id is not None:
                self._send(other, _records(report))

    def close(self) -> None:
        for endpoint in list(self._endpoints):
            self._drop(endpoint)
        if self._listener is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None

    def _accept(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(OSError):  # the process has ended, or there are too many files
            channel, _ = self._listener.accept()
            channel.setblocking(False)
            if not _is_ours(channel) or len(self._endpoints) == _MOST:
                channel.close()
                return
            endpoint = _Endpoint(channel)
            self._endpoints.add(endpoint)
            self._selector.register(channel, selectors.EVENT_READ, lambda: self._read(endpoint))

    def _read(self, endpoint: _Endpoint) -> None:
        if endpoint not in self._endpoints:  # dropped after select() reported it
            return
        try:
            data = endpoint.channel.recv(_RECORD)
        except BlockingIOError:
            return
        except OSError:  # closed with unread records
            data = b""
        is_new = endpoint.id is None
        if data and endpoint.take(data):
            if is_new and endpoint.id is not None and self._ended:
                self._send(endpoint, b"".join(map(_records, self._ended)))
            return
        self._drop(endpoint)
        if not data and endpoint.id is not None and not endpoint.leaves:
            self.spread(endpoint.report)
            if self._on_end is not None:
                self._on_end(endpoint.report)

    def _send(self, endpoint: _Endpoint, record: bytes) -> None:
        try:
            sent = endpoint.channel.send(record, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # it has ended, which the next read finds
        if sent < len(record):
            self._drop(endpoint)

    def _drop(self, endpoint: _Endpoint) -> None:
        self._endpoints.discard(endpoint)
        self._selector.unregister(endpoint.channel)
        endpoint.channel.close()


def is_report(data: bytes) -> bool:
    """Return True if `data` has the form of a report of an end."""
    return len(data) >= ID and len(data) % ID == 0 and len(data) <= MOST_BYTES


def _records(report: bytes) -> bytes:
    """Return the records that report an end to an endpoint."""
    continued = (report[at : at + ID] for at in range(ID, len(report), ID))
    return b"".join(CONTINUES + each for each in continued) + ENDED + report[:ID]


def _is_ours(channel: socket.socket) -> bool:
    """Return True if a process of this user is at the other end."""
    credentials = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(credentials)[1] == os.geteuid())
