# SPDX-License-Identifier: Apache-2.0
"""A histogram of the operations' durations in a comm, for ddl_core.metrics.

It is computed from the comm's record of its last 1024 operations whenever metrics are read, so it
does not slow down operations. If more than 1024 operations end between two readings, the oldest are
missing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any

BOUNDS = tuple(
    float(f"{digit}e{power}") for power in range(-5, 2) for digit in (1, 2.5, 5)
)  # seconds


class Latencies:
    """Counts of durations between the bounds, and the sum of all durations."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0
        self._next = 0  # the number of the first operation that is not yet counted

    def add(self, events: Iterable[dict[str, Any]]) -> None:
        """Count the successful operations among the events of Comm.trace since the last call. An
        operation that was too short to be timed counts as below the first bound."""
        last = self._next
        for event in events:
            if event["ph"] != "X" or event["args"]["status"] != "ok":
                continue
            number = int(event["args"]["number"])
            if number < self._next:
                continue
            last = max(last, number + 1)
            seconds = 0.0 if event["args"].get("short") else float(event["dur"]) / 1e6
            self.counts[bisect_left(BOUNDS, seconds)] += 1
            self.seconds += seconds
        self._next = last

    def lines(self, name: str, labels: str) -> list[str]:
        """Return the lines in Prometheus' text format."""
        out, total = [], 0
        for bound, count in zip([*map(str, BOUNDS), "+Inf"], self.counts, strict=True):
            total += count
            out.append(f'{name}_bucket{{{labels},le="{bound}"}} {total}')
        out.append(f"{name}_sum{{{labels}}} {self.seconds}")
        out.append(f"{name}_count{{{labels}}} {total}")
        return out
