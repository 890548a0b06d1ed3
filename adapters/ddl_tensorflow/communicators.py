# SPDX-License-Identifier: Apache-2.0
"""Some of the ranks, for operations among them alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

from ddl_core import fork_guard
from ddl_core.errors import InvalidArgument
from ddl_tensorflow import world

if TYPE_CHECKING:
    from ddl_core import Comm


class Communicator:
    """Some of the ranks, made by `split` or `subset`; valid until `shutdown`.

    rank   this process's number among them
    size   how many they are
    """

    def __init__(self, comm: Comm) -> None:
        self.rank, self.size = comm.rank, comm.size
        self._number = world.add(comm)

    __reduce__ = fork_guard.refuse_copy

    @overload
    def split(self, color: int, key: int = 0) -> Communicator: ...

    @overload
    def split(self, color: None, key: int = 0) -> None: ...

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """As `ddl_tensorflow.split`, among these ranks."""
        part = world.part(self._number).split(color, key)
        return None if part is None else Communicator(part)


@overload
def split(color: int, key: int = 0) -> Communicator: ...


@overload
def split(color: None, key: int = 0) -> None: ...


def split(color: int | None, key: int = 0) -> Communicator | None:
    """The ranks that give the same color, in the order of key, then of their rank. All ranks call
    it; with None a rank gets None. Raises like ddl_core.Comm.split."""
    part = world.comm().split(color, key)
    return None if part is None else Communicator(part)


def subset(ranks: Sequence[int]) -> Communicator:
    """These ranks, in this order. Only they call it. Raises like ddl_core.Comm.subset."""
    return Communicator(world.comm().subset(ranks))


def members(comm: Communicator | None) -> tuple[int, int, int]:
    """The number, this process's rank and the size of a communicator; None: of all ranks."""
    if comm is None:
        return 0, world.rank(), world.size()
    if not isinstance(comm, Communicator):
        raise InvalidArgument(
            f"comm: is a {type(comm).__name__}, not of ddl_tensorflow.split or subset"
        )
    world.part(comm._number)
    return comm._number, comm.rank, comm.size
