# SPDX-License-Identifier: Apache-2.0
"""Initialization and shutdown, ranks, and process sets for every framework."""

from __future__ import annotations

import atexit
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

from ddl_core import adapter
from ddl_horovod.executor import Executor, Members
from ddl_horovod.timeline import TIMELINE


class FrameworkCalls(Protocol):
    """The functions of a framework's adapter that a `World` needs."""

    name: str  # the module that users import

    def join(self) -> bool:
        """Join the job. Return False if the program has joined it already."""

    def leave(self) -> None:
        """Leave the job."""

    def is_initialized(self) -> bool:
        """Return True if this process has joined the job."""

    def rank(self) -> int:
        """Return the rank of this process."""

    def size(self) -> int:
        """Return the number of processes."""

    def locals(self) -> list[tuple[int, int]]:
        """Return (local_rank, local_size) of each rank."""

    def open(self, ranks: list[int], included: bool) -> Members | None:
        """Create a process set. Return its members, or None on other ranks. All ranks call this."""


class ProcessSet:
    """A set of ranks that operations can be restricted to.

    ranks_or_comm  global ranks; an MPI communicator is not supported

    Pass a set to `init(process_sets=[...])` or `add_process_set` before you use it. All ranks call
    these with the same sets in the same order.
    """

    _world: ClassVar[World[Any]]

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        self._ranks: list[int] | None = sorted(set(ranks_or_comm))
        self.process_set_id: int | None = None
        self._executor: Executor | None = None

    @property
    def ranks(self) -> list[int] | None:
        """The members' global ranks. None for the global process set before `init`."""
        if self._ranks is None and self._world.is_initialized():
            return list(range(self._world.size()))
        return self._ranks

    def included(self) -> bool:
        """Return True if this rank is a member."""
        return self._world.rank() in self.members()

    def rank(self) -> int:
        """Return this process's rank in the set. Raises ValueError if it is not a member."""
        if not self.included():
            own = self._world.rank()
            raise ValueError(f"rank {own} is not in the process set {self.members()}")
        return self.members().index(self._world.rank())

    def size(self) -> int:
        """Return the number of members."""
        return len(self.members())

    def executor(self) -> Executor:
        """Return the executor of the set's operations. Raises ValueError if the set was not added,
        or if this rank is not a member."""
        self.rank()
        if self._executor is None:
            raise ValueError(
                f"the process set {self.ranks} was not added; call add_process_set first"
            )
        return self._executor

    def members(self) -> list[int]:
        """Return the members' global ranks. Raises ValueError before `init`."""
        self._world.check()
        return self.ranks or []

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"

    def _open(self, number: int, framework: FrameworkCalls) -> None:
        members = framework.open(self.members(), self.included())
        if members is not None:
            self._executor = Executor(members)
        self.process_set_id = number

    def _close(self) -> None:
        if self._executor is not None:
            self._executor.close()
        self._executor, self.process_set_id = None, None


Kind = TypeVar("Kind", bound=ProcessSet)


class World(Generic[Kind]):
    """The job and its process sets. A framework's module exports the methods as functions."""

    def __init__(self, framework: FrameworkCalls, kind: type[Kind]) -> None:
        self.framework = framework
        self._kind = kind
        kind._world = self
        self.everyone = kind([])  # the set of all ranks
        self.everyone._ranks = None
        self._sets: dict[int, Kind] = {}
        self._next_id = 0
        self._owns_job = False
        self._locals: list[tuple[int, int]] = []

    # ---- methods that a module exports ----

    def init(
        self, comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None
    ) -> None:
        """Join the job in which this process was started. A second call does nothing.

        comm          must be None; Horovod's MPI communicators and lists of ranks are not supported
        process_sets  sets to add; "dynamic" is accepted, since sets can always be added later

        If the variable HOROVOD_TIMELINE names a file, call `start_timeline` with it.
        """
        if self.is_initialized():
            return
        if comm:
            raise ValueError(
                f"comm is {comm!r}; must be None: pass process_sets, or start fewer ranks"
            )
        if isinstance(process_sets, str) and process_sets != "dynamic":
            raise ValueError(
                f'process_sets is {process_sets!r}; must be "dynamic" or a list of sets'
            )
        self._owns_job = self.framework.join()
        self._locals = self.framework.locals()
        self._add(self.everyone)
        for each in process_sets or ():
            if isinstance(each, ProcessSet):
                self.add_process_set(cast("Kind", each))
        # Handlers run in reverse order, so this one runs before the framework's handlers.
        atexit.unregister(self.shutdown)
        atexit.register(self.shutdown)
        if path := adapter.horovod_timeline():
            self.start_timeline(path)

    def shutdown(self) -> None:
        """Leave the job. `init` may then be called again."""
        TIMELINE.stop()
        for each in self._sets.values():
            each._close()
        self._sets.clear()
        self._next_id = 0
        if self._owns_job:
            self.framework.leave()
        self._owns_job = False

    def is_initialized(self) -> bool:
        """Return True between `init` and `shutdown`."""
        return bool(self._sets) and self.framework.is_initialized()

    def rank(self) -> int:
        """Return the global rank of this process."""
        self.check()
        return self.framework.rank()

    def size(self) -> int:
        """Return the number of processes."""
        self.check()
        return self.framework.size()

    def local_rank(self) -> int:
        """Return the rank of this process among the processes of its host."""
        return self._locals[self.rank()][0]

    def local_size(self) -> int:
        """Return the number of processes on this host."""
        return self._locals[self.rank()][1]

    def cross_rank(self) -> int:
        """Return the rank of this host among the hosts that have this local rank."""
        return sum(each[0] == self.local_rank() for each in self._locals[: self.rank()])

    def cross_size(self) -> int:
        """Return the number of hosts that have this local rank."""
        own = self.local_rank()
        return sum(each[0] == own for each in self._locals)

    def is_homogeneous(self) -> bool:
        """Return True if all hosts have the same number of processes."""
        self.check()
        return len({each[1] for each in self._locals}) == 1

    def start_timeline(self, file_path: str, mark_cycles: bool = False) -> None:
        """Start to log operations on rank 0, to a file for Chrome's trace viewer. mark_cycles is
        ignored, because there are no cycles. Raises ValueError before `init`."""
        if self.rank() == 0:
            TIMELINE.start(file_path)

    def stop_timeline(self) -> None:
        """Close the file of `start_timeline`. Raises ValueError before `init`."""
        self.check()
        TIMELINE.stop()

    def add_process_set(self, process_set: Kind | Iterable[int]) -> Kind:
        """Add a process set, and return it. All ranks call this, even if they are not members.
        Raises ValueError if a rank does not exist or the set was added already."""
        self.check()
        given: Any = process_set
        added: Kind = given if isinstance(given, self._kind) else self._kind(given)
        members = added.members()
        if not members or members[0] < 0 or members[-1] >= self.size():
            raise ValueError(
                f"process_set is {added}; must contain ranks from 0 to {self.size() - 1}"
            )
        for each in self._sets.values():
            if each.members() == members:
                raise ValueError(f"process_set {each} was already added")
        return self._add(added)

    def remove_process_set(self, process_set: ProcessSet) -> bool:
        """Remove a process set. All ranks call this. Return False if the set was not added, or is
        the global one, which cannot be removed."""
        number = process_set.process_set_id
        if process_set is self.everyone or number is None:
            return False
        if self._sets.get(number) is not process_set:
            return False
        del self._sets[number]
        process_set._close()
        return True

    def get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        """Return the global ranks of each process set's members, by process_set_id."""
        return {number: each.members() for number, each in self._sets.items()}

    # ---- methods for the framework's module ----

    def check(self) -> None:
        """Raise ValueError if `init` has not been called, or after `shutdown`."""
        if not self.is_initialized():
            raise ValueError(f"not initialized: call {self.framework.name}.init() first")

    def process_set(self, number: int) -> Kind:
        """Return the set with this process_set_id. Raises ValueError if there is none."""
        self.check()
        if number not in self._sets:
            raise ValueError(f"process_set_id is {number}; must be one of {sorted(self._sets)}")
        return self._sets[number]

    def _add(self, added: Kind) -> Kind:
        self._sets[self._next_id] = added
        added._open(self._next_id, self.framework)
        self._next_id += 1
        return added
