# SPDX-License-Identifier: Apache-2.0
"""Runs the operations of a process set in the background, in the order of their calls.

Before each operation the members exchange what they are about to call. So different calls give an
error on all of them, and members that have joined learn what to take part in.
"""

from __future__ import annotations

import json
import queue
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any, Protocol

from ddl_horovod.common import HorovodInternalError
from ddl_horovod.timeline import TIMELINE

_FIRST_BYTES = 512  # of a call; longer ones are sent in two parts
_LENGTH_BYTES = 8


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
    """

    kind: str
    name: str
    dtypes: list[str] = field(default_factory=list)
    shapes: list[list[int]] = field(default_factory=list)
    equal: list[Any] = field(default_factory=list)
    ragged: bool = False
    splits: list[int] = field(default_factory=list)

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


class Executor:
    """The operations of one process set, on this member."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._pending: set[str] = set()
        self._lock = threading.Lock()
        self._joined: set[int] = set()  # members, in the last exchange
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ddl_horovod", daemon=True)
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
        """Have an operation performed after those before it."""
        future: Future[Any] = Future()
        self._requests.put((call, perform, future))
        return future

    def close(self) -> None:
        """End after the operations that were called, at most a second later; then abort them."""
        self._requests.put(None)
        self._thread.join(1)
        if not self._thread.is_alive():
            self._members.close()

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            call, perform, future = request
            began = agreed = perf_counter()
            try:
                if call.kind == JOIN:
                    result = self._join(call)
                else:
                    calls = self._exchange(call)
                    agreed = perf_counter()
                    _check(calls)
                    result = perform(self._members.group, calls)
                self._forget(call)
                TIMELINE.record(call.kind, call.name, began, agreed, perf_counter())
                future.set_result(result)
            except Exception as error:
                self._forget(call)
                future.set_exception(self._members.internal(error))

    def _forget(self, call: Call) -> None:
        with self._lock:
            self._pending.discard(call.name)

    def _join(self, call: Call) -> int:
        """Take part with zeros until all members have joined. Return the one that joined last."""
        began = perf_counter()
        while True:
            earlier, calls = self._joined, self._exchange(call)
            if len(self._joined) == len(calls):
                return self._last(self._joined - earlier, perf_counter() - began)
            try:
                self._members.take_part(_check(calls), calls)
            except HorovodInternalError:
                continue  # the callers get the error

    def _last(self, candidates: set[int], waited: float) -> int:
        """Return the member that joined last: of those that joined in one exchange, the one that
        has waited for the shortest time. Clocks of hosts differ, but not times of waiting."""
        self._joined = set()
        waits = [
            struct.unpack("<d", each)[0] for each in self._gather(struct.pack("<d", waited), 8)
        ]
        return min(candidates, key=waits.__getitem__)

    def _exchange(self, call: Call) -> list[Call]:
        text = json.dumps(asdict(call)).encode()
        parts = self._gather(len(text).to_bytes(_LENGTH_BYTES, "little") + text, _FIRST_BYTES)
        lengths = [int.from_bytes(part[:_LENGTH_BYTES], "little") for part in parts]
        texts = [part[_LENGTH_BYTES:] for part in parts]
        held = _FIRST_BYTES - _LENGTH_BYTES
        if max(lengths) > held:
            rest = self._gather(text[held:], max(lengths) - held)
            texts = [first + more for first, more in zip(texts, rest, strict=True)]
        calls = [Call(**json.loads(each[:n])) for each, n in zip(texts, lengths, strict=True)]
        self._joined = {number for number, each in enumerate(calls) if each.kind == JOIN}
        return calls

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
