# SPDX-License-Identifier: Apache-2.0
"""Which connections have something to read. `select.select` refuses descriptors from 1024 on."""

from __future__ import annotations

import math
import select
from collections.abc import Iterable
from typing import Protocol, TypeVar


class Connection(Protocol):
    def fileno(self) -> int: ...


Waited = TypeVar("Waited", bound=Connection)


def ready(
    connections: Iterable[Waited], seconds: float | None, writes: bool = False
) -> list[Waited]:
    """Those that can be read, also since they have ended; waits for one, up to so many seconds.
    None: forever. `writes`: that can be written."""
    poll, found = select.poll(), {}
    for each in connections:
        found[each.fileno()] = each
        poll.register(each.fileno(), select.POLLOUT if writes else select.POLLIN)
    limit = None if seconds is None else math.ceil(1000 * max(0.0, seconds))
    return [found[number] for number, _ in poll.poll(limit)]
