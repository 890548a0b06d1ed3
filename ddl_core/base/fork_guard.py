# SPDX-License-Identifier: Apache-2.0
"""Detection of forked children. The threads and the memory of their handles exist only in the
parent."""

from __future__ import annotations

import os
from typing import NoReturn

count = 0  # the number of forks between the process that imported ddl_core and this one


def refuse_copy(self: object) -> NoReturn:
    """Raise TypeError when an object with a handle is copied or pickled: it serves as `__reduce__`.
    A copy would use a handle that the original object frees."""
    package = type(self).__module__.partition(".")[0]
    raise TypeError(
        f"a {package}.{type(self).__name__} belongs to the process that created it: it cannot be"
        " copied or pickled"
    )


def _count() -> None:
    global count
    count += 1


os.register_at_fork(after_in_child=_count)
