"""Notices forks: a forked child holds handles whose threads and memory stayed with its parent."""

from __future__ import annotations

import os
from typing import NoReturn

count = 0  # how many forks this process is away from the one that imported libddl


def refuse_copy(self: object) -> NoReturn:
    """The `__reduce__` of what holds a handle: of two with one handle, one would use what the other
    has freed."""
    raise TypeError(
        f"a ddl_core.{type(self).__name__} belongs to the process that made it: it cannot be copied"
        " or pickled"
    )


def _count() -> None:
    global count
    count += 1


os.register_at_fork(after_in_child=_count)
