# SPDX-License-Identifier: Apache-2.0
"""Variables that shares change, such as batch norm's statistics, where they are read and written as
NumPy arrays. Each share starts from the committed values; the average of all changes is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ddl_elastic.frameworks.flat import Values


class Buffers:
    """Those that `read` gives and `write` sets."""

    def __init__(
        self, read: Callable[[], list[Values]], write: Callable[[Sequence[Values]], None]
    ) -> None:
        self._read, self._write = read, write
        self._committed: list[Values] | None = None  # while a share may have changed them

    def begin(self) -> None:
        """A share starts."""
        if self._committed is None:
            self._committed = self._read()
        else:
            self._write(self._committed)

    def changes(self) -> list[Values]:
        """What the share did."""
        assert self._committed is not None
        return [*map(_change, self._read(), self._committed)]

    def commit(self, changes: Sequence[Values]) -> None:
        """What came of all shares."""
        committed = self._read() if self._committed is None else self._committed
        self._write([*map(np.add, committed, changes)])
        self._committed = None

    def forget(self) -> None:
        """The variables were set to other committed values."""
        self._committed = None


def _change(value: Values, committed: Values) -> Values:
    """Exactly zero where nothing changed, also for an infinity."""
    with np.errstate(invalid="ignore"):
        change: Values = np.where(value == committed, np.zeros_like(value), value - committed)
    return change
