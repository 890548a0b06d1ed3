# SPDX-License-Identifier: Apache-2.0
"""Variables that shares change, such as batch norm's statistics, read and written as NumPy arrays.
Each share starts from the committed values. The average of all changes is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ddl_elastic.frameworks.flat import Values


class Buffers:
    """The variables that `read` returns and `write` sets."""

    def __init__(
        self, read: Callable[[], list[Values]], write: Callable[[Sequence[Values]], None]
    ) -> None:
        self._read, self._write = read, write
        self._committed: list[Values] | None = None  # None outside of steps

    def begin(self) -> None:
        """Start a share: reset the variables to the committed values."""
        if self._committed is None:
            self._committed = self._read()
        else:
            self._write(self._committed)

    def changes(self) -> list[Values]:
        """Return the changes of the variables in this share."""
        assert self._committed is not None
        return [*map(_change, self._read(), self._committed)]

    def commit(self, changes: Sequence[Values]) -> None:
        """Add the average of all shares' changes to the committed values."""
        committed = self._read() if self._committed is None else self._committed
        self._write([*map(np.add, committed, changes)])
        self._committed = None

    def forget(self) -> None:
        """Drop the committed values, because the variables have been set to other values."""
        self._committed = None


def _change(value: Values, committed: Values) -> Values:
    """Return `value` minus `committed`, exactly 0 for equal values, even for infinities."""
    with np.errstate(invalid="ignore"):
        change: Values = np.where(value == committed, np.zeros_like(value), value - committed)
    return change
