# SPDX-License-Identifier: Apache-2.0
"""The listener for agents. Both sides of a connection prove that they know the token, and never
send it. No call here blocks for long."""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ddl_elastic.engines import protocol
from ddl_launch.rank import frames, sockets

HELLO_LIMIT = 10.0  # seconds for a connection to authenticate
_NEWCOMERS = 256  # maximum number of unauthenticated connections


@dataclass(eq=False)
class _Newcomer:
    """A connection that has not authenticated yet."""

    connection: socket.socket
    nonce: bytes
    until: float
    frames: frames.Frames = field(default_factory=frames.Frames)


class AgentListener:
    """A listening socket and its unauthenticated connections.

    address  host and port; host "" means all interfaces, port 0 a free port (of DDL_PORTS if set)
    admit    called with an authenticated connection, its greeting and nonce. It calls `answer`, or
             raises ValueError to refuse the agent
    refused  called with an error message for each refused connection
    """

    def __init__(
        self,
        address: tuple[str, int],
        token: str,
        admit: Callable[[socket.socket, protocol.Greeting, bytes], None],
        refused: Callable[[str], None],
    ) -> None:
        if not token:
            raise ValueError("the token is empty; any process could join the job")
        self._token, self._admit, self._refused = token, admit, refused
        host, port = address

        def listen(port: int) -> socket.socket:
            return socket.create_server((host, port), backlog=1024)

        self._listener = listen(port) if port else sockets.listen_at_allowed(listen)
        self._listener.setblocking(False)
        self._newcomers: dict[socket.socket, _Newcomer] = {}

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def connections(self) -> list[socket.socket]:
        """The sockets to poll. Pass each readable socket to `hear`."""
        has_room = len(self._newcomers) < _NEWCOMERS
        return [*([self._listener] if has_room else []), *self._newcomers]

    def hear(self, one: socket.socket) -> bool:
        """Handle a readable socket. Return False if it does not belong to this listener."""
        if one is self._listener:
            self._accept()
        elif one in self._newcomers:
            self._prove(self._newcomers[one])
        else:
            return False
        return True

    def look(self) -> None:
        """Drop connections that have not authenticated in time. The engine calls it regularly."""
        for newcomer in list(self._newcomers.values()):
            if time.monotonic() > newcomer.until:
                self._drop(newcomer, "it did not prove that it knows the token")

    def answer(
        self, connection: socket.socket, nonce: bytes, answer: protocol.GreetingAnswer
    ) -> None:
        """Answer an agent's greeting. Raises OSError."""
        connection.sendall(frames.proven(frames.GO, protocol.seal(answer), nonce, self._token))

    def close(self) -> None:
        for each in self._newcomers:
            each.close()
        self._newcomers.clear()
        self._listener.close()

    def _accept(self) -> None:
        """Accept pending connections, up to the limit. The rest stay in the kernel's queue."""
        with contextlib.suppress(OSError):
            while len(self._newcomers) < _NEWCOMERS:
                self._greet(self._listener.accept()[0])

    def _greet(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection.settimeout(HELLO_LIMIT)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            frames.enable_keepalive(connection)
            nonce = secrets.token_bytes(32)
            connection.sendall(frames.frame(frames.NONCE, nonce))
            until = time.monotonic() + HELLO_LIMIT
            self._newcomers[connection] = _Newcomer(connection, nonce, until)

    def _prove(self, newcomer: _Newcomer) -> None:
        try:
            data = newcomer.connection.recv(frames.LARGEST)
            if not data:
                raise ValueError("it has disconnected")
            for kind, payload in newcomer.frames.feed(data):
                if kind != frames.HELLO:
                    raise ValueError(f"it sent a frame of kind {kind!r}")
                hello = frames.open_proven(kind, payload, newcomer.nonce, self._token)
                nonce = protocol.open_nonce(hello)
                try:
                    greeting = protocol.open_sealed(protocol.GREETING, hello, "the agent")
                except protocol.VersionMismatch:
                    self.answer(
                        newcomer.connection, nonce, protocol.PoolSettings()
                    )  # names our version
                    raise
                del self._newcomers[newcomer.connection]
                self._admit(newcomer.connection, greeting, nonce)
                return  # the agent sends nothing more before it has the answer
        except (OSError, ValueError) as error:
            self._drop(newcomer, str(error))

    def _drop(self, newcomer: _Newcomer, why: str) -> None:
        with contextlib.suppress(OSError):
            self._refused(f"refused {newcomer.connection.getpeername()[0]}: {why}")
        self._newcomers.pop(newcomer.connection, None)
        newcomer.connection.close()
