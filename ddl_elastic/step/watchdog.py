# SPDX-License-Identifier: Apache-2.0
"""The detection of ranks that hang. The watchdog expels them.

A rank in an endless loop, or one that holds Python's GIL, counts as alive, because libddl sends
heartbeats from a thread. The other ranks wait for it in an operation or in a shrink, and
`Comm.report` lists it as missing. They expel it when it has been missing for too long without
completing a single operation.
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

FIRST = 10  # factor for the limit of the first step, which may compile
STEPS = 5  # the minimum of the limit, in usual steps
KEPT = 15  # number of steps whose median is the usual step
LOOKS = 20  # polls within the limit

# Time limit of operations on the job's comms, in seconds: long, as the watchdog ends hanging ones.
OPERATION_LIMIT = 30 * 24 * 3600.0


class Watchdog:
    """The watchdog of a process. It observes the comm in which the process waits.

    limit  seconds that a rank may be missing, at least 5 usual steps, and 10 times as long in the
           first step; 0 means no limit
    """

    def __init__(self, limit: float = 0.0) -> None:
        if not 0 <= limit < threading.TIMEOUT_MAX:
            raise ValueError(f"watchdog is {limit}; must be a number of seconds, or 0 for no limit")
        self.seconds = limit
        # Returns the ranks that are never expelled.
        self.spares: Callable[[], Collection[int]] = tuple
        self._comm: Comm | None = None
        self._last_step = 0.0  # time at which it began
        self._steps: deque[float] = deque(maxlen=KEPT)
        self._expected = 0.0
        self._late = Lateness(2 * limit / LOOKS)
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def limit(self) -> float:
        """The current limit: a rank that is missing for more seconds is expelled."""
        least = max(self.seconds, STEPS * self._expected)
        if not self._steps:
            return max(least, FIRST * self.seconds)
        return max(least, STEPS * statistics.median(list(self._steps)))

    def expect(self, seconds: float) -> None:
        """Set the expected duration of work that is not a usual step, or 0 when that work is
        done."""
        self._expected = seconds

    def observe(self, comm: Comm) -> None:
        """Start to observe this comm instead of the last one."""
        self._comm, self._late = comm, Lateness(2 * self.seconds / LOOKS)
        if self._thread is None and self.seconds:
            self._thread = threading.Thread(target=self._run, name="ddl watchdog", daemon=True)
            self._thread.start()

    def begin_step(self) -> None:
        """Record that a step begins, and the duration of the last one."""
        now = time.monotonic()
        if self._last_step:
            self._steps.append(now - self._last_step)
        self._last_step = now

    def close(self) -> None:
        """Stop the thread and release the comm."""
        self._closed.set()
        if self._thread:
            self._thread.join()
        self._comm = None

    def _run(self) -> None:
        while not self._closed.wait(self.seconds / LOOKS):
            with suppress(DdlError):  # the comm was closed, or this rank has been declared dead
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
    """The time for which each rank has been missing without completing an operation. Pure.

    most  the maximum number of seconds that one poll adds; if more have passed, this process was
          stopped
    """

    def __init__(self, most: float) -> None:
        self._most, self._looked = most, 0.0
        self._late: dict[tuple[int, int], float] = {}  # by rank and its last operation

    def update(self, report: dict[str, Any], now: float) -> dict[int, float]:
        """Record a Comm.report of time `now`. Return the missing ranks, with their seconds."""
        members = {each["rank"]: each for each in report["members"]}
        missing = [members[rank] for rank in report["missing"]]
        if not report["status"]:
            # A rank inside an operation is itself waiting for another rank.
            missing = [each for each in missing if each["ended"] or not each["operation"]]
        passed, self._looked = min(now - self._looked, self._most), now
        keys = [(each["rank"], each["sequence"]) for each in missing]
        late = self._late
        self._late = {key: late[key] + passed if key in late else 0.0 for key in keys}
        return {rank: seconds for (rank, _), seconds in self._late.items()}
