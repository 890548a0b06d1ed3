# SPDX-License-Identifier: Apache-2.0
"""Limits for the server's connections, which apply before any authentication.

A connection without a complete request is waiting. Waiting connections have a time limit. Their
number is limited for each client and in total. Beyond these limits, the oldest waiting connection
of the client with the most is closed, so that the server always accepts new requests. A connection
whose client does not read is closed, too.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST, EACH = 256, 128  # limits of waiting connections: of all clients, of one address
WAITING = 30.0  # seconds for a complete request
STALLED = 60.0  # seconds within which a client must read some of the sent data


class _Waiting:
    """The waiting connections of the process, by client, the oldest first."""

    def __init__(self) -> None:
        self._clients: dict[str, OrderedDict[ClientConnection, None]] = {}
        self._count = 0

    def add(self, connection: ClientConnection) -> None:
        own = self._clients.setdefault(connection.address, OrderedDict())
        own[connection] = None
        self._count += 1
        if len(own) > EACH:
            self._close_oldest(own)
        elif self._count > MOST:
            self._close_oldest(max(self._clients.values(), key=len))

    def discard(self, connection: ClientConnection) -> None:
        own = self._clients.get(connection.address, OrderedDict())
        if connection in own:
            del own[connection]
            self._count -= 1
            if not own:
                del self._clients[connection.address]

    def _close_oldest(self, own: OrderedDict[ClientConnection, None]) -> None:
        oldest = next(iter(own))
        self.discard(oldest)
        oldest.transport.abort()


# A global, since uvicorn creates the protocols and cannot pass an object of ours.
_waiting = _Waiting()


class ClientConnection(H11Protocol):
    """A client's HTTP connection, to which this module's limits apply."""

    address = ""
    _limit: asyncio.TimerHandle | None = None  # the timer of the waiting connection
    _stall: asyncio.TimerHandle | None = None  # the timer of a client that does not read

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.address = (transport.get_extra_info("peername") or ("",))[0]
        self._update()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._waits_no_more()
        self.resume_writing()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update()

    def on_response_complete(self) -> None:
        self._waits_no_more()
        super().on_response_complete()
        self._update()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall = self._stall or self.loop.call_later(STALLED, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall:
            self._stall.cancel()
            self._stall = None

    def _update(self) -> None:
        """Start or stop the waiting state."""
        cycle = self.cycle
        waits = cycle is None or cycle.response_complete or cycle.more_body
        if not waits or self.transport.is_closing():
            self._waits_no_more()
        elif self._limit is None:
            self._limit = self.loop.call_later(WAITING, self.transport.abort)
            _waiting.add(self)

    def _waits_no_more(self) -> None:
        _waiting.discard(self)
        if self._limit:
            self._limit.cancel()
            self._limit = None
