# SPDX-License-Identifier: Apache-2.0
"""Recognizes forked children: the threads and memory of their handles stayed with the parent."""

from __future__ import annotations

import os
from typing import NoReturn

count = 0  # forks between the process that imported ddl_core and this one


def refuse_copy(self: object) -> NoReturn:
    """The `__reduce__` of an object with a handle: one of two copies would use what the other has
    freed."""
    package = type(self).__module__.partition(".")[0]
    raise TypeError(
        f"a {package}.{type(self).__name__} belongs to the process that made it: it cannot be"
        " copied or pickled"
    )


def _count() -> None:
    global count
    count += 1


os.register_at_fork(after_in_child=_count)
