# SPDX-License-Identifier: Apache-2.0
"""The open objects of this process, by their order of creation."""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from ddl_core.diagnosis.readings import Readings


class HasClosed(Protocol):
    @property
    def closed(self) -> bool: ...


T = TypeVar("T", bound=HasClosed)


class LiveObjects(Generic[T]):
    """A registry of live objects. Adding and listing use no lock, because a signal handler or a
    fork may interrupt a thread that holds it."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._sources: list[Callable[[], None]] = []
        self._clear()
        os.register_at_fork(after_in_child=self._clear)  # a child cannot use the parent's objects

    def _clear(self) -> None:
        self._objects: weakref.WeakValueDictionary[int, T] = weakref.WeakValueDictionary()

    def add(self, value: T) -> None:
        self._objects[next(self._numbers)] = value

    def add_source(self, add_new: Callable[[], None]) -> None:
        """Call `add_new` before each listing, to add objects that were created without Python."""
        self._sources.append(add_new)

    def items(self) -> list[tuple[int, T]]:
        """Return the objects with their numbers, from 0, in order."""
        for add_new in self._sources:
            add_new()
        pairs = ((int(reference.key), reference()) for reference in self._objects.valuerefs())
        found = [(n, value) for n, value in pairs if value is not None and not value.closed]
        return sorted(found, key=lambda item: item[0])


live_comms: LiveObjects[Readings] = LiveObjects()
