"""Objects of this process that are neither closed nor collected, by their order of creation."""

from __future__ import annotations

import itertools
import os
import weakref
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    @property
    def closed(self) -> bool: ...


T = TypeVar("T", bound=Closable)


class LiveObjects(Generic[T]):
    """Adding and listing are single steps under the GIL: a lock could be held when a signal handler
    runs or the process forks."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._clear()
        os.register_at_fork(after_in_child=self._clear)  # a child's copies are of no use

    def _clear(self) -> None:
        self._objects: weakref.WeakValueDictionary[int, T] = weakref.WeakValueDictionary()

    def add(self, value: T) -> None:
        self._objects[next(self._numbers)] = value

    def items(self) -> list[tuple[int, T]]:
        """The objects with their numbers, from 0 on, in order."""
        pairs = ((int(reference.key), reference()) for reference in self._objects.valuerefs())
        found = [(n, value) for n, value in pairs if value is not None and not value.closed]
        return sorted(found, key=lambda item: item[0])
