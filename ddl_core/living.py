"""The comms of this process that are neither closed nor forgotten, for who asks about all."""

from __future__ import annotations

import itertools
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddl_core.comm import Comm

# Keyed by the order of creation. Adding and listing are single steps under the GIL: no lock, which
# a signal handler or a fork could meet held.
_numbers = itertools.count()
_comms: weakref.WeakValueDictionary[int, Comm] = weakref.WeakValueDictionary()


def add(comm: Comm) -> None:
    """`comm` begins to live."""
    _comms[next(_numbers)] = comm


def comms() -> list[tuple[int, Comm]]:
    """Those that live, by their numbers: the order in which they were made, from 0 on."""
    found = [(n, comm) for n, comm in _snapshot() if not comm.closed and not comm._inherited()]
    return sorted(found, key=lambda item: item[0])


def _snapshot() -> list[tuple[int, Comm]]:
    pairs = ((int(reference.key), reference()) for reference in _comms.valuerefs())
    return [(n, comm) for n, comm in pairs if comm is not None]
