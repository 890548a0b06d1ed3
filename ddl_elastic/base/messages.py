# SPDX-License-Identifier: Apache-2.0
"""The messages between the processes of a job: checked JSON, or raw bytes, in ddl_launch's frames.

Long JSON is compressed, such as the addresses that 1000 workers receive. Received data is never
executed or unpickled. A message is refused if its kind is unknown, or if its fields differ from
those listed here.
"""

from __future__ import annotations

import json
import socket
import threading
import zlib
from collections import deque
from dataclasses import dataclass
from typing import Any

from ddl_elastic.base.waiting import ready
from ddl_launch.frames import LARGEST, Frames, frame

_JSON, _LONG, _DATA = b"J", b"Z", b"D"
_COMPRESSED = 16 << 10  # minimum size in bytes of a message that is compressed
_LONGEST = 16 << 20  # maximum size in bytes of a decompressed message

# The fields of each kind of message, with their types.
FIELDS: dict[str, dict[str, type]] = {
    # from a worker
    "ready": {"address": str, "pid": int},
    "begin": {"steps": int, "batch": int, "logical": int, "watchdog": float},
    "progress": {"step": int, "loss": float, "shares": int, "busy": float, "audited": int},
    "recovered": {"step": int, "died": list, "adopted": int, "seconds": float},
    "audit": {  # see audit.AuditFinding
        "step": int,
        "share": int,
        "members": list,
        "tensor": str,
        "first": int,
        "stops": bool,
        "text": str,
    },
    "rollback": {"step": int, "first": int, "text": str},  # back to the checkpoint after `step`
    "line": {"text": str},
    "done": {"steps": int, "loss": float, "digest": str, "parts": dict},
    "failed": {"error": str, "trace": str},
    "tensor": {"name": str, "dtype": str, "shape": list, "bytes": int},  # its data follows
    "end": {},  # all tensors of the state were sent
    "admitted": {"bits": dict},  # an initial worker's admission.Fingerprint
    "warmed": {"bits": dict},  # a joining worker's admission.Fingerprint
    "void": {"plan": int, "failed": list},  # failed: members of the plan's comm that were lost
    "switched": {"plan": int, "step": int, "seconds": float, "members": list, "died": list},
    "leave": {},  # the worker was asked to leave
    "left": {},
    # a request to continue without a majority of the group, see quorum.py
    "ask": {"members": list, "missing": list},
    # to a worker
    "connect": {"members": list, "addresses": list, "attempt": int},
    "warm": {},  # the job is running: compute the reference share, then send `warmed`
    "refused": {"why": str},
    "plan": {
        "plan": int,
        "members": list,
        "newcomers": list,
        "addresses": dict,  # by member, the addresses that the worker may not know yet
        "speeds": list,
    },
    "answer": {"why": str},  # why the worker may not continue; "" means that it may
    "state": {},
    "exit": {},
    # between `ddl elastic scale` and the job
    "scale": {"secret": str, "workers": int},
    "scaled": {"error": str},
    # between `ddl serve` and the process that runs one of its jobs
    "grant": {"number": int, "slots": list},  # all slots that the job may use from now on
    "pause": {},
    "cancel": {},
    "told": {"number": int, "held": list, "report": dict, "measured": list, "logical": int},
    # from a run to the service: the run's name, the port for agents, and fields of "told"
    "listens": {"run": str, "port": int, "number": int, "held": list},
    # between `ddl serve` and its agents, which also send "leave"
    "serve": {"run": str, "port": int},  # start an agent for this run
    "drop": {"run": str},
    "serves": {"runs": list},  # the runs that have processes on the agent's host
    "unserved": {"run": str, "why": str},
    # between the local engine and its agents
    "stop": {"grace": float},
    "ended": {"code": int, "ordered": bool},
    # between the engine for remote agents and these agents
    "start": {"slot": int, "member": int, "threads": int},
    "halt": {"slot": int, "grace": float},
    "gone": {"slot": int, "code": int, "ordered": bool},
    "log": {"slot": int},  # output of the slot's worker follows
    "witnessed": {"endpoint": str},  # a report of an exited process, forwarded to all other agents
    "over": {},  # the job has ended; the agents exit
    # an agent's snapshot of a worker, for a new coordinator; see worker_record.py
    "standing": {
        "state": str,
        "epoch": int,
        "group": int,
        "members": list,
        "plan": int,
        "planned": list,
        "trainings": int,
        "told": list,
    },
}


@dataclass(frozen=True)
class Message:
    kind: str  # "data" for raw bytes
    fields: dict[str, Any]
    data: bytes = b""


class JobOver(EOFError):
    """The error after the job has ended, or has dismissed this worker before it joined."""


class Silent(EOFError):
    """The error for a peer that does not answer. It may be alive, but unreachable."""


class Channel:
    """A connection that carries messages in both directions. Reading raises EOFError after its end,
    and ValueError for invalid data. Do not read from it after such an error."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._frames = Frames()
        self._received: deque[Message] = deque()
        self._sending = threading.Lock()

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, kind: str, **fields: Any) -> None:
        """Send a message. Raises OSError if the peer has disconnected."""
        self.send_packed(pack(kind, fields))

    def send_packed(self, message: bytes) -> None:
        """Send a message that `pack` returned. Raises OSError if the peer has disconnected."""
        with self._sending:
            self._connection.sendall(message)

    def offer(self, kind: str, **fields: Any) -> bool:
        """Send a message if the socket has room for it, else return False."""
        has_room = bool(ready([self], 0, writes=True))  # then there is room for a short message
        if has_room:
            self.send(kind, **fields)
        return has_room

    def send_data(self, data: memoryview) -> None:
        for begin in range(0, len(data), LARGEST):
            self._connection.sendall(frame(_DATA, bytes(data[begin : begin + LARGEST])))

    def receive(self, limit: float | None = None) -> Message:
        """Wait for the next message. Raises TimeoutError if no data arrives for `limit` seconds."""
        while not self._received:
            if limit is not None and not ready([self], limit):
                raise TimeoutError(f"nothing was received for {limit:.0f} s")
            self._received.extend(self._read())
        return self._received.popleft()

    def poll(self) -> list[Message]:
        """Return the messages that have arrived. Does not wait if the connection is readable."""
        received = [*self._received, *self._read()]
        self._received.clear()
        return received

    def _read(self) -> list[Message]:
        try:
            data = self._connection.recv(LARGEST)
        except ConnectionError:
            data = b""
        except OSError as error:  # keepalives have failed, or the network reports an error
            raise Silent(error.strerror) from None
        if not data:
            raise EOFError("the peer has closed the connection")
        return [_unpack(*each) for each in self._frames.feed(data)]

    def close(self) -> None:
        self._connection.close()


def pack(kind: str, fields: dict[str, Any]) -> bytes:
    """Return the bytes of a message. Raises ValueError if its fields are invalid."""
    _check(kind, fields)
    text = json.dumps({"kind": kind, **fields}).encode()
    if len(text) < _COMPRESSED:
        return frame(_JSON, text)
    return frame(_LONG, zlib.compress(text, 1))


def _uncompressed(data: bytes) -> bytes:
    stream = zlib.decompressobj()
    try:
        text = stream.decompress(data, _LONGEST)
    except zlib.error as error:
        raise ValueError(f"a message that is not compressed: {error}") from None
    if not stream.eof or stream.unused_data:
        raise ValueError(f"a message of more than {_LONGEST} bytes, or a part of one")
    return text


def _unpack(kind: bytes, data: bytes) -> Message:
    if kind == _DATA:
        return Message("data", {}, data)
    if kind == _LONG:
        data = _uncompressed(data)
    elif kind != _JSON:
        raise ValueError(f"a frame of kind {kind!r}")
    try:
        fields = json.loads(data)
    except RecursionError:
        raise ValueError("a message that is nested too deeply") from None
    if not isinstance(fields, dict):
        raise ValueError(f"a message that is a {type(fields).__name__}")
    name = fields.pop("kind", None)
    _check(name, fields)
    return Message(name, fields)


def checked(kind: Any, fields: Any) -> Message:
    """Return a message that was a field of another message. Raises ValueError if it is invalid."""
    if not isinstance(fields, dict):
        raise ValueError(f"a message {kind!r} with {fields!r}")
    _check(kind, fields)
    return Message(kind, fields)


def _check(kind: Any, fields: dict[str, Any]) -> None:
    types = FIELDS.get(kind) if isinstance(kind, str) else None
    if types is None or types.keys() != fields.keys():
        raise ValueError(f"a message {kind!r} with {sorted(fields)}")
    for name, value in fields.items():
        if type(value) is not types[name]:
            raise ValueError(f"{kind}.{name} is {value!r}")
