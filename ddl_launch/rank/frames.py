# SPDX-License-Identifier: Apache-2.0
"""The protocol between ddlrun and the ranks of other hosts: frames over TCP.

Scripts import this module, so it imports no other module of the project. A frame is its kind (one
byte), the length of the data (four bytes) and the data. First, both sides prove that they know the
job's secret, with an HMAC of the other side's nonce. No data is encrypted.

ddlrun sends more input only after rank 0's program has TAKEN the earlier input, so signals never
wait behind unread input.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

HELLO, OUT, ERR, ENDED, TAKEN, REPORT = b"H", b"O", b"E", b"X", b"T", b"R"  # sent by a rank
NONCE, GO, SIGNAL, INPUT, FINISH = b"N", b"G", b"S", b"I", b"B"  # sent by ddlrun
WITNESSED = b"W"  # sent by both: the id of an endpoint whose process has ended
HEAD = struct.Struct("!cI")
LARGEST = 1 << 20  # bytes in a frame
TICK = 1.0  # seconds between two checks of a connection
_SILENCE = 4  # seconds of silence after which a connection is lost
_LATE = 2
_PROBES = 3  # unanswered probes after which a connection is lost
# The fields retransmits, probes; unacked; last_data_recv and last_ack_recv, in ms.
_TCP_INFO = struct.Struct("@2x2B20xI24x2I")


@dataclass(frozen=True)
class RankHello:
    """The first message of a rank. ddlrun's answer contains a proof for `nonce`."""

    rank: int
    host: str
    error: str  # why the rank cannot start, or ""
    library: dict[str, str]  # see library.py
    ports: list[int]  # free ports of rank 0's host
    cores: str
    allowed: int  # the number of cores that the rank could use
    threads: str
    nonce: str = ""


@dataclass(frozen=True)
class StartProgram:
    """The answer of ddlrun, when all ranks have connected."""

    environment: dict[str, str]
    input: bool  # the program gets input


@dataclass(frozen=True)
class ProgramEnded:
    """The end of a rank's program."""

    pid: int
    code: int
    by_signal: bool


@dataclass(frozen=True)
class InputTaken:
    """The number of bytes of input that the program has taken."""

    size: int


# The contents of frames by kind, from a rank and from ddlrun. Proofs are opened first.
GREETINGS: Mapping[bytes, type] = {HELLO: RankHello, GO: StartProgram}
FROM_RANK: Mapping[bytes, type] = {
    **dict.fromkeys((OUT, ERR, REPORT, WITNESSED), bytes),
    ENDED: ProgramEnded,
    TAKEN: InputTaken,
}
TO_RANK: Mapping[bytes, type] = dict.fromkeys((NONCE, GO, SIGNAL, INPUT, FINISH, WITNESSED), bytes)


def encode(message: DataclassInstance) -> bytes:
    """Return the bytes that `decode` reads."""
    return json.dumps(asdict(message)).encode()


def decode(types: Mapping[bytes, type], kind: bytes, data: bytes) -> Any:
    """Return the content of a frame. Raises ValueError if its kind is unknown, or if the content is
    not of the kind's type."""
    wanted = types.get(kind)
    if wanted is bytes:
        return data
    if wanted is None:
        raise ValueError(f"an invalid message: a frame of kind {kind!r}")
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"an invalid message: {error}") from None
    names = {each.name: str(each.type).partition("[")[0] for each in fields(wanted)}
    if not isinstance(values, dict) or {k: type(v).__name__ for k, v in values.items()} != names:
        raise ValueError(f"an invalid message: {wanted.__name__} {values!r:.200}")
    return wanted(**values)


def frame(kind: bytes, data: bytes = b"") -> bytes:
    """Encode a frame."""
    return HEAD.pack(kind, len(data)) + data


def proven(kind: bytes, text: bytes, nonce: bytes, secret: str) -> bytes:
    """Encode a frame with a proof for the side that sent `nonce`."""
    return frame(kind, _proof(kind, text, nonce, secret) + text)


def open_proven(kind: bytes, data: bytes, nonce: bytes, secret: str) -> bytes:
    """Check the proof in a frame, and return the frame's text. Raises ValueError if the sender does
    not know the job's secret."""
    proof, text = data[:32], data[32:]
    if not hmac.compare_digest(proof, _proof(kind, text, nonce, secret)):
        raise ValueError("it does not know the job's secret")
    return text


def _proof(kind: bytes, text: bytes, nonce: bytes, secret: str) -> bytes:
    return hmac.new(secret.encode(), kind + nonce + text, hashlib.sha256).digest()


def enable_keepalive(connection: socket.socket) -> None:
    """Let the kernel close an idle connection whose other side has disappeared."""
    for option, value in (
        (socket.TCP_KEEPIDLE, 1),
        (socket.TCP_KEEPINTVL, 1),
        (socket.TCP_KEEPCNT, _SILENCE - 1),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def is_silent(connection: socket.socket) -> bool:
    """Return True if the other host has stopped acknowledging data.

    TCP_USER_TIMEOUT would also end a connection whose other side is alive but does not read, for
    example while a pager holds the output.
    """
    retransmits, probes, unacked, *ages = _look(connection)
    return min(ages) > 1000 * _SILENCE and bool((retransmits and unacked) or probes >= _PROBES)


def is_late(connection: socket.socket) -> bool:
    """Return True if the other host should have acknowledged a keepalive by now."""
    return min(_look(connection)[3:]) > 1000 * _LATE


def _look(connection: socket.socket) -> tuple[int, ...]:
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    return _TCP_INFO.unpack(info)


class Frames:
    """A decoder that cuts a stream into frames."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """Add received data. Return the complete frames as (kind, data). Raises ValueError for
        invalid data."""
        self._rest += data
        found = []
        begin = 0
        while len(self._rest) >= begin + HEAD.size:
            kind, length = HEAD.unpack_from(self._rest, begin)
            if length > LARGEST:
                raise ValueError(f"a frame of {length} bytes; the limit is {LARGEST}")
            end = begin + HEAD.size + length
            if len(self._rest) < end:
                break
            found.append((kind, self._rest[begin + HEAD.size : end]))
            begin = end
        self._rest = self._rest[begin:]
        return found
