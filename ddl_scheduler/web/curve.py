# SPDX-License-Identifier: Apache-2.0
"""The reports of one job over time: a bounded list of points, kept in a file for later services."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

MOST = 1000  # the most points; beyond that, every second one is dropped
BYTES = 1 << 22  # the most bytes that are read from a file


class Curve:
    """The points (time, step, loss, workers, seconds a step) of a job, in order of time.

    A point that cannot be written, for example on a full disk, is kept in memory only.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.points = _read(path)
        self._each = 1  # how many samples make a point
        self._skipped = 0
        self._thin()

    def add(self, point: dict[str, Any]) -> None:
        """Add a sample. It becomes a point if enough samples were skipped, or the workers have
        changed."""
        is_news = not self.points or self.points[-1]["workers"] != point["workers"]
        self._skipped += 1
        if not is_news and self._skipped < self._each:
            return
        self._skipped = 0
        self.points.append(point)
        if not self._thin():
            with suppress(OSError), self._path.open("a") as file:
                file.write("\n" + json.dumps(point))  # the previous line may be incomplete

    def _thin(self) -> bool:
        """If there are too many points, drop every second one, and rewrite the file. Return True if
        points were dropped."""
        if len(self.points) <= MOST:
            return False
        while len(self.points) > MOST:
            del self.points[1::2]
            self._each *= 2
        new = self._path.with_suffix(".new")
        with suppress(OSError):
            new.write_text("\n".join(map(json.dumps, self.points)))
            new.replace(self._path)
        return True


def _read(path: Path) -> list[dict[str, Any]]:
    """Return the points of a file, without incomplete lines."""
    points = []
    with suppress(OSError), path.open() as file:
        for line in file.read(BYTES).splitlines():
            with suppress(ValueError):
                point = json.loads(line)
                if isinstance(point, dict) and {"time", "workers"} <= point.keys():
                    points.append(point)
    return points
