# SPDX-License-Identifier: Apache-2.0
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
    """Adding and listing take no lock: a signal handler or a fork may come while one is held."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._clear()
        os.register_at_fork(after_in_child=self._clear)  # a child cannot use them

    def _clear(self) -> None:
        self._objects: weakref.WeakValueDictionary[int, T] = weakref.WeakValueDictionary()

    def add(self, value: T) -> None:
        self._objects[next(self._numbers)] = value

    def items(self) -> list[tuple[int, T]]:
        """The objects with their numbers, from 0 on, in order."""
        pairs = ((int(reference.key), reference()) for reference in self._objects.valuerefs())
        found = [(n, value) for n, value in pairs if value is not None and not value.closed]
        return sorted(found, key=lambda item: item[0])
