# SPDX-License-Identifier: Apache-2.0
"""Finds ranks that hang, and has them counted as dead.

libddl's heartbeats come from a thread of its own, so a rank in an endless loop, or one that holds
Python's lock, counts as alive, and the others wait for it in an operation, or in a shrink. They see
in `Comm.report` that it is missing. When it has been missing for too long without having gone on by
a single operation, they expel it.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from ddl_core import Comm
from ddl_core.errors import DdlError

FIRST = 10  # the limit of the first step is so many times as long: it may compile
STEPS = 5  # usual steps, which the limit is at least
KEPT = 15  # steps, whose median is the usual one
LOOKS = 20  # in the time of the limit

# Seconds of an operation of the job's comms: what hangs is for the watchdog to end, or for nobody.
OPERATION_LIMIT = 30 * 24 * 3600.0


class Watchdog:
    """One of a process: it observes the comm that the process's thread waits in.

    limit  seconds that a rank may be missing, but at least 5 usual steps, and in the first step 10
           times as long; 0: forever
    """

    def __init__(self, limit: float = 0.0) -> None:
        if not 0 <= limit < threading.TIMEOUT_MAX:
            raise ValueError(f"watchdog is {limit}; it is a number of seconds, or 0 for none")
        self.seconds = limit
        # The ranks that are not expelled, however long they are missing.
        self.spares: Callable[[], Collection[int]] = tuple
        self._comm: Comm | None = None
        self._last_step = 0.0  # when it began
        self._steps: deque[float] = deque(maxlen=KEPT)
        self._expected = 0.0
        self._late = Lateness(2 * limit / LOOKS)
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def limit(self) -> float:
        """Seconds that a rank may be missing now."""
        least = max(self.seconds, STEPS * self._expected)
        if not self._steps:
            return max(least, FIRST * self.seconds)
        return max(least, STEPS * statistics.median(list(self._steps)))

    def expect(self, seconds: float) -> None:
        """What goes on takes so long, and is no usual step; 0: it is over."""
        self._expected = seconds

    def observe(self, comm: Comm) -> None:
        """From now on it is this comm that may wait for somebody."""
        self._comm, self._late = comm, Lateness(2 * self.seconds / LOOKS)
        if self._thread is None and self.seconds:
            self._thread = threading.Thread(target=self._run, name="ddl watchdog", daemon=True)
            self._thread.start()

    def begin_step(self) -> None:
        """The last step is over."""
        now = time.monotonic()
        if self._last_step:
            self._steps.append(now - self._last_step)
        self._last_step = now

    def close(self) -> None:
        """End the thread: it does not look at the comm any more."""
        self._closed.set()
        if self._thread:
            self._thread.join()
        self._comm = None

    def _run(self) -> None:
        while not self._closed.wait(self.seconds / LOOKS):
            with suppress(DdlError):  # the comm was closed, or this rank is counted as dead itself
                self._look(self._comm)

    def _look(self, comm: Comm | None) -> None:
        if comm is None:
            return
        report, late, limit = comm.report(), self._late, self.limit
        spared = self.spares()
        report["missing"] = [rank for rank in report["missing"] if rank not in spared]
        for rank, seconds in late.update(report, time.monotonic()).items():
            if seconds > limit:
                comm.expel(rank, f"it hangs: the others have waited for it for {seconds:.1f} s")


class Lateness:
    """For how long ranks have been missing without having gone on. Pure.

    most  seconds between two looks: longer, this process was stopped, and that time does not count
    """

    def __init__(self, most: float) -> None:
        self._most, self._looked = most, 0.0
        self._late: dict[tuple[int, int], float] = {}  # by rank and its last operation

    def update(self, report: dict[str, Any], now: float) -> dict[int, float]:
        """Take in what Comm.report tells at `now`. By rank: how long it has been missing."""
        members = {each["rank"]: each for each in report["members"]}
        missing = [members[rank] for rank in report["missing"]]
        if not report["status"]:
            # A rank that is in an operation waits as well: for one that is not.
            missing = [each for each in missing if each["ended"] or not each["operation"]]
        passed, self._looked = min(now - self._looked, self._most), now
        keys = [(each["rank"], each["sequence"]) for each in missing]
        late = self._late
        self._late = {key: late[key] + passed if key in late else 0.0 for key in keys}
        return {rank: seconds for (rank, _), seconds in self._late.items()}
