# SPDX-License-Identifier: Apache-2.0
"""Reads of ranges from the ranks that hold them, during a step.

The ranks compute different numbers of shares, so they cannot gather the parameters of a block in
collective operations. Instead, a thread on each rank answers the requests of the other ranks. The
values of ranges do not change during a step: no rank updates them before all have voted. So the
thread runs from the beginning of a step to the vote.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ddl_core import Comm, Work
from ddl_core.errors import DdlError, TimedOut
from ddl_elastic.frameworks.protocol import Array

_REQUEST, _REPLY = 4, 5  # tags
_STOP = -1  # in place of an array's number, in a request that a rank sends to itself
_NEVER = 30 * 24 * 3600.0  # seconds; waiting for a request must not kill the comm
_SLICES = 20  # polls within the limit of a read


class Span(NamedTuple):
    """An interval of an array's elements."""

    array: int
    begin: int
    end: int


def merge(spans: Iterable[Span]) -> list[Span]:
    """Return the union of the spans, ascending."""
    merged = list[Span]()
    for array, begin, end in sorted(spans):
        if merged and merged[-1].array == array and merged[-1].end >= begin:
            merged[-1] = Span(array, merged[-1].begin, max(end, merged[-1].end))
        else:
            merged.append(Span(array, begin, end))
    return merged


def subtract(spans: Iterable[Span], others: Sequence[Span]) -> list[Span]:
    """Return the parts of the spans that are in none of the others, which are ascending."""
    found = list[Span]()
    for array, begin, end in spans:
        for other in (each for each in others if each.array == array):
            if begin < min(other.begin, end):
                found.append(Span(array, begin, min(other.begin, end)))
            begin = max(begin, other.end)
        if begin < end:
            found.append(Span(array, begin, end))
    return found


def find_sources(
    spans: Iterable[Span],
    bounds: Sequence[Sequence[int]],
    holders: Sequence[int],
    members: Sequence[int],
    own: int,
    copies: int = 1,
) -> list[tuple[int, Span]]:
    """Return the parts of the spans that member `own` does not hold, each with a rank that holds
    it. Omit parts whose holders have all died. Pure.

    bounds   the bounds of the ranges, by array
    holders  the members between which the arrays are cut
    members  the living members, by rank
    copies   the number of holders of a range besides its owner
    """
    found = list[tuple[int, Span]]()
    for array, begin, end in spans:
        for number, (first, last) in enumerate(pairwise(bounds[array])):
            part = Span(array, max(begin, first), min(end, last))
            owners = [holders[(number + n) % len(holders)] for n in range(copies + 1)]
            if part.begin < part.end and own not in owners:
                alive = [members.index(each) for each in owners if each in members]
                found += [(rank, part) for rank in alive[:1]]
    return found


class Reads:
    """The thread that answers this rank's peers, and this rank's own requests.

    values  returns the arrays
    """

    def __init__(self, values: Callable[[], Sequence[Array]]) -> None:
        self._values = values
        self._comm: Comm | None = None  # None if no thread answers requests
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None  # an error of the thread's own
        # Returns the seconds after which a rank that does not answer is expelled; 0 means never.
        self.limit: Callable[[], float] = float

    @property
    def is_serving(self) -> bool:
        """True between `serve` and `stop`."""
        return self._comm is not None

    def serve(self, comm: Comm) -> None:
        """Answer the requests in this comm. If there was another comm, it has died. Raises the
        error of an earlier thread that has failed."""
        if self._failure:
            raise self._failure
        if comm is not self._comm:
            self._comm = comm
            self._thread = threading.Thread(
                target=self._answer, args=(comm,), name="ddl reads", daemon=True
            )
            self._thread.start()

    def follow(self, comm: Comm) -> None:
        """Answer requests in this comm, which replaces a dead one, if they were answered there."""
        if self._comm:
            self.serve(comm)

    def stop(self) -> None:
        """Stop answering, if it has begun. No other rank has open requests."""
        comm, self._comm = self._comm, None
        if comm and self._thread:
            with suppress(DdlError):  # the comm is dead, so the thread has ended
                comm.send(np.array([_STOP, 0, 0]), comm.rank, tag=_REQUEST)
            self._thread.join()

    def _answer(self, comm: Comm) -> None:
        request = np.empty(3, np.int64)
        try:
            while True:
                rank = comm.recv(request, tag=_REQUEST, timeout=_NEVER)
                if request[0] == _STOP:
                    return
                self._reply(comm, rank, Span(*request.tolist()))
        except DdlError:
            pass  # the comm is dead
        except BaseException as error:  # the readers must not wait for this rank
            self._failure = error
            comm.abort(f"cannot answer a request for parameters: {error!r}")

    def _reply(self, comm: Comm, rank: int, span: Span) -> None:
        """Send a reply. Do not wait for a reader that hangs, because others wait for replies."""
        comm.send_async(self._values()[span.array][span.begin : span.end], rank, tag=_REPLY)

    def read(self, comm: Comm, parts: Sequence[tuple[int, Span]]) -> None:
        """Read these spans, each from a rank that holds it, into this rank's arrays. Raises the
        comm's error if it dies."""
        values, works = self._values(), list[tuple[int, Work[Any]]]()
        try:
            for rank, (array, begin, end) in parts:
                into = values[array][begin:end]
                works.append((rank, comm.recv_async(into, rank, tag=_REPLY)))
                comm.send(np.array([array, begin, end]), rank, tag=_REQUEST)
            for rank, work in works:
                self._wait(comm, rank, work)
        finally:
            for _, work in works:  # no message arrives in memory that is in use again
                with suppress(DdlError):
                    work.wait()

    def _wait(self, comm: Comm, rank: int, work: Work[Any]) -> None:
        """Wait for a reply. The watchdog does not observe messages, so expel the rank here if it
        does not answer. The time for which this process is stopped does not count."""
        limit = self.limit()
        part, waited = limit / _SLICES, 0.0
        while not limit or waited < limit:
            began = time.monotonic()
            with suppress(TimedOut):
                work.wait(part or None)
                return
            waited += min(time.monotonic() - began, 2 * part)
        comm.expel(rank, "it hangs: it does not answer requests for its ranges")
        work.wait()
