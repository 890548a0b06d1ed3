# SPDX-License-Identifier: Apache-2.0
"""Measurements of a job's step time for each number of workers, taken while it runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

LEAST_STEPS = 5  # the fewest steps and seconds of a measurement
LEAST_SECONDS = 1.0
KEPT = 9  # measurements kept for each size


@dataclass
class _Found:
    """The measurements with one number of workers."""

    steps: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    shares: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))


class ThroughputEstimator:
    """The step times of one job, measured at several sizes."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], _Found] = {}
        self._place, self._steps, self._since = (0, 0), 0, 0.0
        self._shares, self._busy = 0, 0.0
        self._begun = False  # whether a step was committed since the size changed

    def see(
        self, now: float, steps: int, size: int, hosts: int = 1, shares: int = 0, busy: float = 0.0
    ) -> None:
        """Record the progress of the job. The first step after a change of the size does not count.

        steps         the number of committed steps
        size, hosts   the number of workers that train, and of their hosts
        shares, busy  the shares that all workers have computed so far, and the seconds spent on
                      them
        """
        if (size, hosts) != self._place or steps < self._steps:
            self._place, self._steps, self._begun = (size, hosts), steps, False
        elif steps > self._steps and not self._begun:
            self._begin(now, steps, shares, busy)
        elif steps - self._steps >= LEAST_STEPS and now - self._since >= LEAST_SECONDS and size:
            found = self._found.setdefault(self._place, _Found())
            found.steps.append((now - self._since) / (steps - self._steps))
            if shares > self._shares:
                found.shares.append((busy - self._busy) / (shares - self._shares))
            self._begin(now, steps, shares, busy)

    def _begin(self, now: float, steps: int, shares: int, busy: float) -> None:
        self._since, self._steps, self._begun = now, steps, True
        self._shares, self._busy = shares, busy

    def measured(self) -> list[tuple[int, int, float, float]]:
        """Return workers, hosts, seconds of a step and seconds of a share for each size. A share's
        seconds are 0 if unknown."""
        return [
            (*place, median(found.steps), median(found.shares) if found.shares else 0.0)
            for place, found in sorted(self._found.items())
        ]

    def load(self, measured: Iterable[Sequence[Any]]) -> None:
        """Load the measurements of an earlier run."""
        for size, hosts, seconds, share in measured:
            found = self._found[int(size), int(hosts)] = _Found()
            found.steps.append(float(seconds))
            if share:
                found.shares.append(float(share))
