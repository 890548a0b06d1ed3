# SPDX-License-Identifier: Apache-2.0
"""Runs the operations of a process set in the background.

Before each operation the members exchange what they have called. So different calls give an error
on all of them, and members that have joined learn what to take part in. Calls with a name of
PyTorch, and those of a TensorFlow graph, match by name: both may start operations in any order. All
others match by their order.
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

_FIRST_BYTES = 512  # of a call; longer ones are sent in two parts
_LENGTH_BYTES = 8
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.01  # seconds before a round without announcements
_STALLED, _EXPIRED = 10.0, 1800.0  # seconds without announcements, until a warning and an error
_CLOSING = 1.0  # seconds until pending operations are aborted
_log = logging.getLogger("ddl_horovod")


@dataclass(frozen=True)
class Call:
    """What a member calls.

    kind     the operation
    name     given by the program; "" for none
    dtypes   of its tensors
    shapes   of its tensors
    equal    what is equal on all members, besides the above: the reduction, the root
    ragged   whether the first dimensions may differ
    splits   rows for each member, of alltoall
    graph    whether it is matched by its name; else by the order of such calls
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
        """Equal for the calls of all members that match."""
        return self.name if self.graph else ""

    def signature(self) -> tuple[Any, ...]:
        """What is equal on all members."""
        shapes = [shape[1:] if self.ragged else shape for shape in self.shapes]
        return self.kind, self.name, self.dtypes, shapes, self.equal

    def __str__(self) -> str:
        tensors = ", ".join(f"{d}{tuple(s)}" for d, s in zip(self.dtypes, self.shapes, strict=True))
        options = f" {self.equal}" if self.equal else ""
        name = f" {self.name!r}" if self.name else ""
        return f"{self.kind}{name} of {tensors or 'nothing'}{options}"


JOIN = "join"
_JOINED = Call(JOIN, "")
Perform = Callable[[Any, list[Call]], Any]  # on the members' group, with their calls


class Members(Protocol):
    """The members of a process set, as a framework reaches them: by its own `group`."""

    group: Any

    def size(self) -> int:
        """How many they are."""

    def gather(self, data: bytes) -> list[bytes]:
        """What each of them gives; all give equally many bytes."""

    def take_part(self, call: Call, calls: list[Call]) -> None:
        """Perform the others' operation with zeros, or without rows."""

    def internal(self, error: Exception) -> Exception:
        """What is raised for an operation that failed so."""

    def close(self) -> None:
        """Abort what is pending, and leave."""


class _Request(NamedTuple):
    call: Call
    perform: Perform
    future: Future[Any]
    began: float


class Executor:
    """The operations of one process set, on this member.

    In each round every member announces what it has called since the last one. An operation that
    all members have announced is performed, on all of them in the same order. A member without
    announcements takes part in a round if it waits for those of others, or has joined.
    """

    def __init__(self, members: Members) -> None:
        self._members = members
        self._pending: set[str] = set()
        self._optimizers = count()
        self._lock = threading.Lock()
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ddl_horovod", daemon=True)
        # The thread's own.
        self._announced: dict[str, _Request] = {}  # this member's, by key
        self._later: list[_Request] = []  # those whose key is announced already
        self._calls: dict[str, dict[int, Call]] = {}  # all members' announcements, by key
        self._joined: set[int] = set()  # members
        self._last_joined: set[int] = set()  # those in the latest round in which any did
        self._last_news, self._warned = perf_counter(), False
        self._closing = self._aborted = False
        self._thread.start()

    def name(self, given: str | None) -> str:
        """The name of a call; "" for none, so that only their order tells such calls apart.
        ValueError for that of a pending one."""
        if given is None:
            return ""
        with self._lock:
            if given in self._pending:
                raise ValueError(f"name: {given!r} is that of an operation that is pending")
            self._pending.add(given)
        return given

    def submit(self, call: Call, perform: Perform) -> Future[Any]:
        """Have an operation performed once all members have called it; after those before it,
        unless it is of a graph."""
        future: Future[Any] = Future()
        self._requests.put(_Request(call, perform, future, perf_counter()))
        return future

    def count_optimizer(self) -> int:
        """Return the number of the set's optimizers before this one, to name its operations."""
        return next(self._optimizers)

    def close(self) -> None:
        """End after the operations that were called, at most a second later; then abort them."""
        self._requests.put(None)
        self._thread.join(_CLOSING)
        self._aborted = self._thread.is_alive()  # it waits for other members
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

    def _take(self, pause: float) -> list[Call]:
        """Take what was called, and return what to announce of it. Wait for a call if there is
        nothing else to do, and for `pause` if only others' announcements help."""
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

    def _announce(self, new: list[Call]) -> bool:
        """Exchange what the members have called since the last round. Returns whether any has."""
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
        """Perform what all members have called, but for those that have joined."""
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
        """Return the member that joined last: of those that joined in one round, the one that has
        waited for the shortest time. Clocks of hosts differ, but not times of waiting."""
        waits = [
            struct.unpack("<d", each)[0] for each in self._gather(struct.pack("<d", waited), 8)
        ]
        return min(self._last_joined, key=waits.__getitem__)

    def _perform_one(self, key: str, calls: list[Call]) -> None:
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
        """Whether this member has."""
        return "" in self._announced and self._announced[""].call.kind == JOIN

    def _settle(self, request: _Request, agreed: float, result: Any) -> None:
        """Give an operation its result, which may be an error."""
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
        """End all operations that were announced: the members are out of reach."""
        if self._aborted:
            error = HorovodInternalError(
                "the process set was closed before all members called this"
            )
        failed = list(self._announced.values())
        for each in (self._announced, self._calls, self._joined):
            each.clear()
        for request in failed:
            self._settle(request, 0, error)

    def _check_progress(self) -> None:
        """Warn when all members wait for each other, and after half an hour end the set.
        HorovodInternalError then."""
        quiet = perf_counter() - self._last_news
        if quiet < _STALLED or (self._warned and quiet < _EXPIRED):
            return
        waiting = "; ".join(
            f"members {sorted(called)} have called {next(iter(called.values()))}"
            for called in self._calls.values()
        )
        text = f"all members wait for others since {quiet:.0f} s: {waiting}"
        if quiet >= _EXPIRED:
            self._members.close()
            raise HorovodInternalError(text)
        self._warned = True
        _log.warning("%s", text)

    def _exchange(self, own: list[Call]) -> list[list[Call]]:
        """The members' calls."""
        text = json.dumps([asdict(call) for call in own]).encode()
        parts = self._gather(len(text).to_bytes(_LENGTH_BYTES, "little") + text, _FIRST_BYTES)
        lengths = [int.from_bytes(part[:_LENGTH_BYTES], "little") for part in parts]
        texts = [part[_LENGTH_BYTES:] for part in parts]
        held = _FIRST_BYTES - _LENGTH_BYTES
        if max(lengths) > held:
            rest = self._gather(text[held:], max(lengths) - held)
            texts = [first + more for first, more in zip(texts, rest, strict=True)]
        return [
            [Call(**call) for call in json.loads(each[:length])]
            for each, length in zip(texts, lengths, strict=True)
        ]

    def _gather(self, text: bytes, length: int) -> list[bytes]:
        return self._members.gather(text[:length].ljust(length, b"\0"))


def _check(calls: list[Call]) -> Call:
    """The call of the members that have not joined. HorovodInternalError, on all members alike,
    where they call different things."""
    active = [each for each in calls if each.kind != JOIN]
    for each in active:
        if each.signature() != active[0].signature():
            raise HorovodInternalError(
                f"members {calls.index(active[0])} and {calls.index(each)} of {len(calls)} call"
                f" different things: {active[0]}, and {each}"
            )
    if len(active) < len(calls) and not _allows_join(active[0]):
        raise HorovodInternalError(f"{active[0]}: a member has joined, which this does not allow")
    return active[0]


def _allows_join(call: Call) -> bool:
    """Whether zeros, or no rows, of the members that have joined do not change the result."""
    if call.kind == "allreduce":
        return call.equal[0] in ("Average", "Sum", "Adasum")
    return call.kind in ("allgather", "barrier")
