# SPDX-License-Identifier: Apache-2.0
"""Waiting for connections with poll, because `select.select` refuses descriptors from 1024 on."""

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
    """Wait until a connection is readable or has ended, for up to `seconds` (None: forever). Return
    all such connections. With `writes`, wait until one is writable instead."""
    poll, found = select.poll(), {}
    for each in connections:
        found[each.fileno()] = each
        poll.register(each.fileno(), select.POLLOUT if writes else select.POLLIN)
    limit = None if seconds is None else math.ceil(1000 * max(0.0, seconds))
    return [found[number] for number, _ in poll.poll(limit)]
