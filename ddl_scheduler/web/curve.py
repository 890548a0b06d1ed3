# SPDX-License-Identifier: Apache-2.0
"""What one job reported over time: a bounded list of points, kept in a file, so that a service that
is started again shows it."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

MOST = 1000  # points; then each second one is dropped
BYTES = 1 << 22  # of a file that is read


class Curve:
    """Points of (time, step, loss, workers, seconds a step), in order of time. What cannot be
    written, as on a full disk, is in memory only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.points = _read(path)
        self._each = 1  # sample that becomes a point
        self._skipped = 0
        self._thin()

    def add(self, point: dict[str, Any]) -> None:
        """A sample. It becomes a point if others of late have not, or the workers have changed."""
        is_news = not self.points or self.points[-1]["workers"] != point["workers"]
        self._skipped += 1
        if not is_news and self._skipped < self._each:
            return
        self._skipped = 0
        self.points.append(point)
        if not self._thin():
            with suppress(OSError), self._path.open("a") as file:
                file.write("\n" + json.dumps(point))  # the line before may be torn

    def _thin(self) -> bool:
        """If there are too many points, drop each second one, and write the others anew."""
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
    """Without a line that was not written to its end."""
    points = []
    with suppress(OSError), path.open() as file:
        for line in file.read(BYTES).splitlines():
            with suppress(ValueError):
                point = json.loads(line)
                if isinstance(point, dict) and {"time", "workers"} <= point.keys():
                    points.append(point)
    return points
