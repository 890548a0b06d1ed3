# SPDX-License-Identifier: Apache-2.0
"""Communicators of a part of the ranks, for adapters with a native part."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, TypeVar, overload

from ddl_core.base import fork_guard
from ddl_core.errors import InvalidArgument

if TYPE_CHECKING:
    from ddl_core.adapter import World
    from ddl_core.base.config import Config
    from ddl_core.comm import Comm

C = TypeVar("C", bound="Communicator")


class Communicator(ABC):
    """A group of some of the ranks, created by `split` or `subset`; valid until `shutdown`.

    rank  the number of this process in the group
    size  the number of members
    """

    def __init__(self, comm: Comm) -> None:
        self.rank, self.size = comm.rank, comm.size
        self._number = self._add(comm)

    __reduce__ = fork_guard.refuse_copy

    @abstractmethod
    def _add(self, comm: Comm) -> int:
        """Make the comm usable by operations. Return its number in the native part."""

    @abstractmethod
    def _part(self) -> Comm:
        """Return the communicator's comm. Raises a DdlError after `shutdown`."""

    @overload
    def split(self: C, color: int, key: int = 0, *, invariant: str | None = None) -> C: ...

    @overload
    def split(self, color: None, key: int = 0, *, invariant: str | None = None) -> None: ...

    def split(
        self: C, color: int | None, key: int = 0, *, invariant: str | None = None
    ) -> C | None:
        """Split this communicator, as the adapter's `split` splits the group of all ranks."""
        part = self._part().split(color, key, _config(invariant))
        return None if part is None else type(self)(part)


class Functions(Generic[C]):
    """The functions that create an adapter's communicators. The adapter exports the methods."""

    def __init__(self, kind: type[C], world: World) -> None:
        self._kind, self._world = kind, world

    @overload
    def split(self, color: int, key: int = 0, *, invariant: str | None = None) -> C: ...

    @overload
    def split(self, color: None, key: int = 0, *, invariant: str | None = None) -> None: ...

    def split(self, color: int | None, key: int = 0, *, invariant: str | None = None) -> C | None:
        """Create a communicator of the ranks that give the same color, ordered by key, then by
        rank. All ranks call it; a rank with color None gets None. invariant: the order of
        additions, equal on all members, as in ddl_core.Config; None: the setting of all ranks.
        Raises like ddl_core.Comm.split.
        """
        part = self._world.comm().split(color, key, _config(invariant))
        return None if part is None else self._kind(part)

    def subset(self, ranks: Sequence[int], *, invariant: str | None = None) -> C:
        """Create a communicator of these ranks, in this order. Only they call it. invariant: as in
        `split`. Raises like ddl_core.Comm.subset."""
        return self._kind(self._world.comm().subset(ranks, _config(invariant)))

    def members(self, comm: C | None) -> tuple[int, int, int]:
        """Return the number, this process's rank and the size of a communicator (None: of all
        ranks)."""
        if comm is None:
            return 0, self._world.rank(), self._world.size()
        if not isinstance(comm, self._kind):
            package = self._kind.__module__.partition(".")[0]
            raise InvalidArgument(
                f"comm is a {type(comm).__name__}; must be a communicator of {package}.split or"
                " subset"
            )
        comm._part()
        return comm._number, comm.rank, comm.size


def _config(invariant: str | None) -> Config:
    from ddl_core.base.config import Config

    return Config(invariant=invariant)
