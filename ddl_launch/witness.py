# SPDX-License-Identifier: Apache-2.0
"""Report to the ranks of a host which of their processes have ended. The kernel closes a dead
process's connection, which no network between hosts can forge.

Imported by scripts that import nothing else of the project. DDL_WITNESS names an abstract unix
stream socket, without the leading zero byte. Each endpoint of libddl connects to it. A record is 24
bytes: a word of 8 and the endpoint's id of 16.

    ddlwitn1    an endpoint, first: this is my id
    ddlleave    an endpoint, before it is destroyed: my end means nothing
    ddlcontn    an endpoint: I may continue without members of a comm; the first half of the comm's
                id, and the number of the attempt by which its survivors agreed. The witness sends
                these 16 bytes to all others before it reports the end of the endpoint
    ddlended    the witness: the process of this endpoint has ended

An endpoint that comes late is told of the last ends before: its record may be read after that of an
end, although it was sent before.

On several hosts each has its own witnesses. `on_end` of one forwards its reports to ddlrun, which
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
MOST_BYTES = ID * 10  # of a report
_MOST = 4096  # connections
_REMEMBERED = 64  # ends
_CONTINUED = 8  # comms of an endpoint; if there were more, _ALL stands for those that are forgotten
_ALL = struct.pack("=QQ", 0, 2**32 - 1)
_CREDENTIALS = struct.Struct("@3i")  # pid, uid, gid


class _Endpoint:
    """A connection, and which endpoint it belongs to once it has said so."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.received = b""  # less than a record
        self.id: bytes | None = None
        self.leaves = False
        self.continued: dict[bytes, bytes] = {}  # by comm

    @property
    def report(self) -> bytes:
        """What is said of its end: its id, and what it has sent by CONTINUES."""
        return (self.id or b"") + b"".join(self.continued.values())

    def take(self, data: bytes) -> bool:
        """Take in what was read. False when it is none of these records."""
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
    """Serves the endpoints of this host, by callbacks of `selector`. `name` is for DDL_WITNESS; ""
    where there are no abstract sockets, and then nothing is witnessed.

    Nothing is kept for a connection that does not read: it is closed when its socket is full.
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
        with contextlib.suppress(OSError):  # of a process that has ended, or for want of room
            channel, _ = self._listener.accept()
            channel.setblocking(False)
            if not _is_ours(channel) or len(self._endpoints) == _MOST:
                channel.close()
                return
            endpoint = _Endpoint(channel)
            self._endpoints.add(endpoint)
            self._selector.register(channel, selectors.EVENT_READ, lambda: self._read(endpoint))

    def _read(self, endpoint: _Endpoint) -> None:
        if endpoint not in self._endpoints:  # dropped since it was ready
            return
        try:
            data = endpoint.channel.recv(_RECORD)
        except BlockingIOError:
            return
        except OSError:  # closed with records that it had not read
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
            return  # it has ended, which is read
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
    """The records by which an end is reported to an endpoint."""
    continued = (report[at : at + ID] for at in range(ID, len(report), ID))
    return b"".join(CONTINUES + each for each in continued) + ENDED + report[:ID]


def _is_ours(channel: socket.socket) -> bool:
    """Whether a process of this user is at the other end."""
    credentials = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(credentials)[1] == os.geteuid())
