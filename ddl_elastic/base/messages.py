# SPDX-License-Identifier: Apache-2.0
"""The transport of messages between the processes of a job: MessagePack in ddl_launch's frames.

A protocol is a module named `protocol`. It defines the messages as subclasses of `Message`, and for
each channel the union of the messages that arrive there. `decode` refuses everything else. Received
data is never executed or unpickled. Long messages are compressed, such as the addresses that 1000
workers receive.
"""

from __future__ import annotations

import socket
import threading
import zlib
from collections import deque
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.msgpack import Decoder

from ddl_elastic.base.waiting import ready
from ddl_launch.rank.frames import LARGEST, Frames, frame

_PLAIN, _LONG = b"M", b"Z"
_COMPRESSED = 16 << 10  # minimum size in bytes of a message that is compressed
_LONGEST = 16 << 20  # maximum size in bytes of a decompressed message

T = TypeVar("T")


def _plain(value: Any) -> Any:
    """Convert a library's value to a plain Python value: a NumPy scalar, or an instance of a
    subclass of str, int or float, such as PyTorch's version."""
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    return value.item()


_encode = msgspec.msgpack.Encoder(enc_hook=_plain).encode


class Message(msgspec.Struct, tag=True, tag_field="message", forbid_unknown_fields=True):
    """The base class of messages. A message has exactly the fields of its class."""


class JobOver(EOFError):
    """The error after the job has ended, or has dismissed this worker before it joined."""


class Silent(EOFError):
    """The error for a peer that does not respond. It may be alive, but unreachable."""


class Channel(Generic[T]):
    """A connection that carries messages in both directions. Reading raises EOFError after its end,
    and ValueError for invalid data. Do not read from it after such an error.

    receives  the decoder for the union of the messages that may arrive
    """

    def __init__(self, connection: socket.socket, receives: Decoder[T]) -> None:
        self._connection, self._receives = connection, receives
        self._frames = Frames()
        self._received: deque[T] = deque()
        self._sending = threading.Lock()

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: Message) -> None:
        """Send a message. Raises OSError if the peer has disconnected."""
        self.send_packed(pack(message))

    def send_packed(self, message: bytes) -> None:
        """Send a message that `pack` returned. Raises OSError if the peer has disconnected."""
        with self._sending:
            self._connection.sendall(message)

    def offer(self, message: Message) -> bool:
        """Send a message if the socket has room for it. Otherwise, return False."""
        has_room = bool(ready([self], 0, writes=True))  # then there is room for a short message
        if has_room:
            self.send(message)
        return has_room

    def receive(self, limit: float | None = None) -> T:
        """Wait for the next message. Raises TimeoutError if no data arrives for `limit` seconds."""
        while not self._received:
            if limit is not None and not ready([self], limit):
                raise TimeoutError(f"nothing was received for {limit:.0f} s")
            self._received.extend(self._read())
        return self._received.popleft()

    def poll(self) -> list[T]:
        """Return the messages that have arrived. Does not wait if the connection is readable."""
        received = [*self._received, *self._read()]
        self._received.clear()
        return received

    def _read(self) -> list[T]:
        try:
            data = self._connection.recv(LARGEST)
        except ConnectionError:
            data = b""
        except OSError as error:  # keepalives have failed, or the network reports an error
            raise Silent(error.strerror) from None
        if not data:
            raise EOFError("the peer has closed the connection")
        return [_unpack(*each, self._receives) for each in self._frames.feed(data)]

    def close(self) -> None:
        self._connection.close()


def pack(message: Message, compress: bool = True) -> bytes:
    """Return the bytes of a message. It is compressed if it is long, unless `compress` is False."""
    data = encode(message)
    if len(data) < _COMPRESSED or not compress:
        return frame(_PLAIN, data)
    return frame(_LONG, zlib.compress(data, 1))


def encode(message: Any) -> bytes:
    """Return the bytes that `decode` reads."""
    return _encode(message)


def decode(receives: Decoder[T], data: bytes) -> T:
    """Decode a message. Raises ValueError if its type is unknown, or its fields are invalid."""
    try:
        return receives.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"an invalid message: {error}") from None


def _uncompressed(data: bytes) -> bytes:
    stream = zlib.decompressobj()
    try:
        text = stream.decompress(data, _LONGEST)
    except zlib.error as error:
        raise ValueError(f"a message that is not compressed: {error}") from None
    if not stream.eof or stream.unused_data:
        raise ValueError(f"a message of more than {_LONGEST} bytes, or a part of one")
    return text


def _unpack(kind: bytes, data: bytes, receives: Decoder[T]) -> T:
    if kind == _LONG:
        data = _uncompressed(data)
    elif kind != _PLAIN:
        raise ValueError(f"unknown frame kind {kind!r}")
    return decode(receives, data)
