# SPDX-License-Identifier: Apache-2.0
"""The rate of a counter over the last 10 seconds. Pure."""

from __future__ import annotations

from collections import deque

WINDOW = 10.0  # seconds


class Rate:
    """The rate of a counter over the last WINDOW seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()  # times and values

    def record(self, now: float, number: float) -> None:
        """Record the counter's value at time `now`, in seconds."""
        if self._seen and number < self._seen[-1][1]:  # the counter was reset
            self._seen.clear()
        self._seen.append((now, number))
        while len(self._seen) > 2 and self._seen[1][0] < now - WINDOW:
            self._seen.popleft()

    @property
    def per_second(self) -> float:
        """The rate, or 0.0 before the second value."""
        if len(self._seen) < 2:
            return 0.0
        (first, before), (last, after) = self._seen[0], self._seen[-1]
        return (after - before) / (last - first) if last > first else 0.0
