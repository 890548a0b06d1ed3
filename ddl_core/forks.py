"""Notices forks: a forked child holds handles whose threads and memory stayed with its parent."""

from __future__ import annotations

import os

count = 0  # how many forks this process is away from the one that imported libddl


def _count() -> None:
    global count
    count += 1


os.register_at_fork(after_in_child=_count)
