# SPDX-License-Identifier: Apache-2.0
"""A background thread that runs the operations of a process set.

Before each operation the members exchange their calls. If the calls do not match, all members get
an error. Members that have called join() receive the other members' calls, and take part in their
operations. Named PyTorch calls and the calls of a TensorFlow graph match by name, because ranks may
start them in any order. All other calls match by their order.
"""

from __future__ import annotations

import json
import logging
import queue
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import count
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from ddl_horovod.common import HorovodInternalError
from ddl_horovod.timeline import TIMELINE

_FIRST_BYTES = 512  # the size of the first message; longer calls need a second one
_LENGTH_BYTES = 8
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.01  # seconds before a round without announcements
_STALLED, _EXPIRED = 10.0, 1800.0  # seconds without announcements until a warning, an error
_CLOSING = 1.0  # seconds until pending operations are aborted
_log = logging.getLogger("ddl_horovod")


@dataclass(frozen=True)
class MemberCall:
    """A member's call of an operation.

    kind     the operation
    name     the name that the program gave, or ""
    dtypes   the types of the tensors
    shapes   the shapes of the tensors
    equal    further arguments that must be equal on all members: the reduction, the root
    ragged   True if the first dimensions may differ
    splits   alltoall's number of rows for each member
    graph    True if calls match by name, False if they match by their order
    """

    kind: str
    name: str
    dtypes: list[str] = field(default_factory=list)
    shapes: list[list[int]] = field(default_factory=list)
    equal: list[Any] = field(default_factory=list)
    ragged: bool = False
    splits: list[int] = field(default_factory=list)
    graph: bool = False

    def key(self) -> str:
        """Return the key that matching calls of all members share."""
        return self.name if self.graph else ""

    def signature(self) -> tuple[Any, ...]:
        """Return the fields that must be equal on all members."""
        shapes = [shape[1:] if self.ragged else shape for shape in self.shapes]
        return self.kind, self.name, self.dtypes, shapes, self.equal

    def __str__(self) -> str:
        tensors = ", ".join(f"{d}{tuple(s)}" for d, s in zip(self.dtypes, self.shapes, strict=True))
        options = f" {self.equal}" if self.equal else ""
        name = f" {self.name!r}" if self.name else ""
        return f"{self.kind}{name} of {tensors or 'nothing'}{options}"


JOIN = "join"
_JOINED = MemberCall(JOIN, "")
Perform = Callable[[Any, list[MemberCall]], Any]  # takes the members' group and their calls


class Members(Protocol):
    """The members of a process set. They communicate through the framework's `group`."""

    group: Any

    def size(self) -> int:
        """Return the number of members."""

    def gather(self, data: bytes) -> list[bytes]:
        """Return the data of all members, which must have the same length."""

    def take_part(self, call: MemberCall, calls: list[MemberCall]) -> None:
        """Take part in the other members' operation with zeros, or without rows."""

    def internal(self, error: Exception) -> Exception:
        """Return the exception to raise for an operation that failed with this error."""

    def close(self) -> None:
        """Abort pending operations and leave the group."""


class _Request(NamedTuple):
    call: MemberCall
    perform: Perform
    future: Future[Any]
    began: float


class Executor:
    """The operations of one process set on this member.

    In each round every member announces its calls since the last round. The members then perform
    the operations that all of them have announced, in the same order. A member without new calls
    takes part in a round if one of its calls is pending or it has called join().
    """

    def __init__(self, members: Members) -> None:
        self._members = members
        self._pending: set[str] = set()
        self._optimizers = count()
        self._lock = threading.Lock()
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ddl_horovod", daemon=True)
        # Only the thread uses the fields below.
        self._announced: dict[str, _Request] = {}  # this member's requests, by key
        self._later: list[_Request] = []  # requests whose key is announced already
        self._calls: dict[str, dict[int, MemberCall]] = {}  # all members' announcements, by key
        self._joined: set[int] = set()  # the members that have joined
        self._last_joined: set[int] = set()  # the members that joined in the latest such round
        self._last_news, self._warned = perf_counter(), False
        self._closing = self._aborted = False
        self._thread.start()

    def name(self, given: str | None) -> str:
        """Reserve a call's name and return it, or "" if none is given. Raises ValueError if a
        pending operation has this name."""
        if given is None:
            return ""
        with self._lock:
            if given in self._pending:
                raise ValueError(
                    f"name is {given!r}, but an operation with this name is pending; wait for it,"
                    " or use another name"
                )
            self._pending.add(given)
        return given

    def submit(self, call: MemberCall, perform: Perform) -> Future[Any]:
        """Perform an operation once all members have called it. Calls outside a graph run in the
        order of their submission."""
        future: Future[Any] = Future()
        self._requests.put(_Request(call, perform, future, perf_counter()))
        return future

    def count_optimizer(self) -> int:
        """Count another optimizer of the set, and return the number of earlier ones, which makes
        the names of its operations unique."""
        return next(self._optimizers)

    def close(self) -> None:
        """Finish the pending operations and stop. Abort them if that takes more than a second."""
        self._requests.put(None)
        self._thread.join(_CLOSING)
        self._aborted = self._thread.is_alive()  # the thread still waits for other members
        self._members.close()
        self._thread.join(_CLOSING)

    def _run(self) -> None:
        pause = _SHORTEST_PAUSE
        while True:
            new = self._take(pause)
            if self._closing and not self._announced:
                return
            try:
                if self._announce(new):
                    pause = _SHORTEST_PAUSE
                    self._last_news, self._warned = perf_counter(), False
                else:
                    pause = min(2 * pause, _LONGEST_PAUSE)
                    self._check_progress()
                self._perform()
            except Exception as error:
                self._fail(error)

    def _take(self, pause: float) -> list[MemberCall]:
        """Receive new requests, and return the calls to announce. Wait for a request if nothing is
        pending. Wait at most `pause` seconds if requests wait for other members."""
        limit = pause if self._announced else None
        if self._has_joined() or any(
            each.call.key() not in self._announced for each in self._later
        ):
            limit = 0
        called, self._later = self._later, []
        with suppress(queue.Empty):
            while (request := self._requests.get(timeout=limit)) is not None:
                called.append(request)
                limit = 0
            self._closing = True
        new = []
        for request in called:
            key = request.call.key()
            if key in self._announced:
                self._later.append(request)
            else:
                self._announced[key] = request
                new.append(request.call)
        return new

    def _announce(self, new: list[MemberCall]) -> bool:
        """Exchange the members' new calls. Return True if any member has announced a call."""
        everyone = self._exchange(new)
        joined = set()
        for member, calls in enumerate(everyone):
            for call in calls:
                if call.kind == JOIN:
                    joined.add(member)
                else:
                    self._calls.setdefault(call.key(), {})[member] = call
        self._joined |= joined
        self._last_joined = joined or self._last_joined
        return any(everyone)

    def _perform(self) -> None:
        """Perform the operations that all members have called. A joined member counts as having
        called each of them. If all members have joined, complete their calls of join()."""
        size = self._members.size()
        for key, called in list(self._calls.items()):
            if len({*called, *self._joined}) == size:
                del self._calls[key]
                self._perform_one(key, [called.get(member, _JOINED) for member in range(size)])
        if len(self._joined) == size:
            last = self._last(perf_counter() - self._announced[""].began)
            self._joined.clear()
            self._settle(self._announced.pop(""), perf_counter(), last)

    def _last(self, waited: float) -> int:
        """Return the member that joined last: in the latest round with joins, the member that has
        waited for the shortest time. Waiting times are comparable even if hosts' clocks differ."""
        waits = [
            struct.unpack("<d", each)[0] for each in self._gather(struct.pack("<d", waited), 8)
        ]
        return min(self._last_joined, key=waits.__getitem__)

    def _perform_one(self, key: str, calls: list[MemberCall]) -> None:
        agreed = perf_counter()
        if self._has_joined() and (not key or key not in self._announced):
            with suppress(HorovodInternalError):  # the callers get the error
                self._members.take_part(_check(calls), calls)
            return
        request = self._announced.pop(key)
        try:
            _check(calls)
            result = request.perform(self._members.group, calls)
        except Exception as error:
            self._settle(request, agreed, error)
        else:
            self._settle(request, agreed, result)

    def _has_joined(self) -> bool:
        return "" in self._announced and self._announced[""].call.kind == JOIN

    def _settle(self, request: _Request, agreed: float, result: Any) -> None:
        """Complete an operation with its result or error."""
        with self._lock:
            self._pending.discard(request.call.name)
        if isinstance(result, Exception):
            request.future.set_exception(self._members.internal(result))
            return
        TIMELINE.record(
            *(request.call.kind, request.call.name, request.began, agreed, perf_counter())
        )
        request.future.set_result(result)

    def _fail(self, error: Exception) -> None:
        """Fail all announced operations, because an exchange with the members has failed."""
        if self._aborted:
            error = HorovodInternalError(
                "the process set was closed before all members called this"
            )
        failed = list(self._announced.values())
        for each in (self._announced, self._calls, self._joined):
            each.clear()
        for request in failed:
            self._settle(request, 0, _with_call(request.call, error))

    def _check_progress(self) -> None:
        """Warn if all members wait for each other. After half an hour, close the set and raise
        HorovodInternalError."""
        quiet = perf_counter() - self._last_news
        if quiet < _STALLED or (self._warned and quiet < _EXPIRED):
            return
        waiting = "; ".join(
            f"members {sorted(called)} have called {next(iter(called.values()))}"
            for called in self._calls.values()
        )
        text = f"all members have waited for other members for {quiet:.0f} s: {waiting}"
        if quiet >= _EXPIRED:
            self._members.close()
            raise HorovodInternalError(text)
        self._warned = True
        _log.warning("%s", text)

    def _exchange(self, own: list[MemberCall]) -> list[list[MemberCall]]:
        """Send this member's calls, and return the calls of each member."""
        text = json.dumps([asdict(call) for call in own]).encode()
        parts = self._gather(len(text).to_bytes(_LENGTH_BYTES, "little") + text, _FIRST_BYTES)
        lengths = [int.from_bytes(part[:_LENGTH_BYTES], "little") for part in parts]
        texts = [part[_LENGTH_BYTES:] for part in parts]
        held = _FIRST_BYTES - _LENGTH_BYTES
        if max(lengths) > held:
            rest = self._gather(text[held:], max(lengths) - held)
            texts = [first + more for first, more in zip(texts, rest, strict=True)]
        return [
            [MemberCall(**call) for call in json.loads(each[:length])]
            for each, length in zip(texts, lengths, strict=True)
        ]

    def _gather(self, text: bytes, length: int) -> list[bytes]:
        return self._members.gather(text[:length].ljust(length, b"\0"))


def _with_call(call: MemberCall, error: Exception) -> Exception:
    """Return the error of a failed exchange, with the call that failed because of it in its
    message."""
    return type(error)(f"{call}: {error}")


def _check(calls: list[MemberCall]) -> MemberCall:
    """Return the call of the members that have not joined. Raises HorovodInternalError on all
    members if the calls do not match."""
    active = [each for each in calls if each.kind != JOIN]
    for each in active:
        if each.signature() != active[0].signature():
            raise HorovodInternalError(
                f"members {calls.index(active[0])} and {calls.index(each)} of {len(calls)} call"
                f" different operations: {active[0]}, and {each}"
            )
    if len(active) < len(calls) and not _allows_join(active[0]):
        raise HorovodInternalError(
            f"{active[0]}: a member has joined, but this operation does not support join()"
        )
    return active[0]


def _allows_join(call: MemberCall) -> bool:
    """Return True if joined members can take part with zeros, or without rows."""
    if call.kind == "allreduce":
        return call.equal[0] in ("Average", "Sum", "Adasum")
    return call.kind in ("allreduce_packed", "allgather", "barrier")
