"""How long a job's steps take with each number of workers, measured while it runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

LEAST_STEPS = 5  # of a measurement
LEAST_SECONDS = 1.0
KEPT = 9  # measurements of a size


class Pace:
    """Of one job."""

    def __init__(self) -> None:
        self._found: dict[int, deque[float]] = {}  # seconds of a step, by size
        self._size, self._steps, self._since = 0, 0, 0.0
        self._begun = False  # a step was committed since the size changed

    def see(self, now: float, steps: int, size: int) -> None:
        """So many steps are committed, and so many workers train. The first step after a change
        does not count."""
        if size != self._size or steps < self._steps:
            self._size, self._steps, self._begun = size, steps, False
        elif steps > self._steps and not self._begun:
            self._steps, self._since, self._begun = steps, now, True
        elif steps - self._steps >= LEAST_STEPS and now - self._since >= LEAST_SECONDS and size:
            found = self._found.setdefault(size, deque(maxlen=KEPT))
            found.append((now - self._since) / (steps - self._steps))
            self._steps, self._since = steps, now

    def measured(self) -> list[tuple[int, float]]:
        """Sizes, and the seconds of a step with each."""
        return [(size, median(found)) for size, found in sorted(self._found.items())]

    def load(self, measured: Iterable[Sequence[Any]]) -> None:
        """What an earlier run has measured."""
        for size, seconds in measured:
            self._found[int(size)] = deque([float(seconds)], maxlen=KEPT)
