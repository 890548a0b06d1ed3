# SPDX-License-Identifier: Apache-2.0
"""What the processes of a job tell each other: checked JSON and raw bytes in ddl_launch's frames.
Long JSON is compressed, as the addresses of 1000 workers are to 1000 workers.

Nothing that is received is executed or unpickled. A message of an unknown kind, or with fields
other than those listed here, is refused.
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
_COMPRESSED = 16 << 10  # bytes from which on a message is
_LONGEST = 16 << 20  # bytes of a message that was compressed

# By kind: the fields and their types.
FIELDS: dict[str, dict[str, type]] = {
    # a worker's
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
    "rollback": {"step": int, "first": int, "text": str},  # to the checkpoint before this step
    "line": {"text": str},
    "done": {"steps": int, "loss": float, "digest": str, "parts": dict},
    "failed": {"error": str, "trace": str},
    "tensor": {"name": str, "dtype": str, "shape": list, "bytes": int},  # then so many bytes
    "end": {},  # of the state
    "admitted": {"bits": dict},  # those of the first reference share, see admission.Fingerprint
    "warmed": {"bits": dict},  # a newcomer's
    "void": {"plan": int, "failed": list},  # members of it that the others have lost
    "switched": {"plan": int, "step": int, "seconds": float, "members": list, "died": list},
    "leave": {},  # it was asked to
    "left": {},
    # its side of a divided group is no majority, see quorum.py
    "ask": {"members": list, "missing": list},
    # to a worker
    "connect": {"members": list, "addresses": list, "attempt": int},
    "warm": {},  # others have begun: compute the reference share, then say so
    "refused": {"why": str},
    "plan": {
        "plan": int,
        "members": list,
        "newcomers": list,
        "addresses": dict,  # by member, those that the worker may not know yet
        "speeds": list,
    },
    "answer": {"why": str},  # it may not go on; "": it may
    "state": {},
    "exit": {},
    # between `ddl elastic scale` and the job
    "scale": {"secret": str, "workers": int},
    "scaled": {"error": str},
    # between `ddl serve` and what runs one of its jobs
    "grant": {"number": int, "slots": list},  # all that the job may use from now on
    "pause": {},
    "cancel": {},
    "told": {"number": int, "held": list, "report": dict, "measured": list, "logical": int},
    # of a run to the service: where agents dial in, and under which name; the rest as in "told"
    "listens": {"run": str, "port": int, "number": int, "held": list},
    # between `ddl serve` and agents that have dialed in there; "leave", too
    "serve": {"run": str, "port": int},  # be an agent of this run
    "drop": {"run": str},
    "serves": {"runs": list},  # that have processes there
    "unserved": {"run": str, "why": str},
    # between an engine and its agents
    "stop": {"grace": float},
    "ended": {"code": int, "ordered": bool},
    # between an engine and agents that have dialed in, about a slot
    "start": {"slot": int, "member": int, "threads": int},
    "halt": {"slot": int, "grace": float},
    "gone": {"slot": int, "code": int, "ordered": bool},
    "log": {"slot": int},  # then bytes that its worker has written
    "witnessed": {"endpoint": str},  # of libddl, whose process has ended; then to all other agents
    "over": {},  # the job has ended, and the agents with it
    # what an agent remembers of a worker, to a coordinator that comes later; see worker_record.py
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
    """The job has ended, or goes on without this worker, which has not joined it."""


class Silent(EOFError):
    """The other side does not answer any more. It may be alive, behind a network that is cut."""


class Channel:
    """A connection on which messages come and go. Reading raises EOFError when it has ended, and
    ValueError for what is no message; of such a connection nothing more is to be read."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._frames = Frames()
        self._received: deque[Message] = deque()
        self._sending = threading.Lock()

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, kind: str, **fields: Any) -> None:
        """Raises OSError if the other side is gone."""
        self.send_packed(pack(kind, fields))

    def send_packed(self, message: bytes) -> None:
        """What `pack` has made. Raises OSError if the other side is gone."""
        with self._sending:
            self._connection.sendall(message)

    def offer(self, kind: str, **fields: Any) -> bool:
        """Send it, unless the other side does not keep up. Returns whether it was sent."""
        has_room = bool(ready([self], 0, writes=True))  # for far more bytes than such a message
        if has_room:
            self.send(kind, **fields)
        return has_room

    def send_data(self, data: memoryview) -> None:
        for begin in range(0, len(data), LARGEST):
            self._connection.sendall(frame(_DATA, bytes(data[begin : begin + LARGEST])))

    def receive(self, limit: float | None = None) -> Message:
        """The next message; waits for it. Raises TimeoutError if nothing comes for so many
        seconds."""
        while not self._received:
            if limit is not None and not ready([self], limit):
                raise TimeoutError(f"nothing has come for {limit:.0f} s")
            self._received.extend(self._read())
        return self._received.popleft()

    def poll(self) -> list[Message]:
        """The messages that have come. Does not wait if `select` says that there is something."""
        received = [*self._received, *self._read()]
        self._received.clear()
        return received

    def _read(self) -> list[Message]:
        try:
            data = self._connection.recv(LARGEST)
        except ConnectionError:
            data = b""
        except OSError as error:  # of the keepalives, or of what lies between
            raise Silent(error.strerror) from None
        if not data:
            raise EOFError("the other side has ended")
        return [_unpack(*each) for each in self._frames.feed(data)]

    def close(self) -> None:
        self._connection.close()


def pack(kind: str, fields: dict[str, Any]) -> bytes:
    """A message as it is sent."""
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
    """A message that was told by another one. Raises ValueError."""
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
