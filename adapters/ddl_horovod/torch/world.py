"""Joining and leaving, ranks, and process sets."""

from __future__ import annotations

import atexit
from collections.abc import Iterable, Sequence
from typing import Any

import torch.distributed as dist

import ddl_torch
from ddl_horovod.torch.executor import Executor
from ddl_torch.world import group as world_group


class ProcessSet:
    """Some of the ranks, which operations can be restricted to.

    ranks  numbers of ranks among all

    It is usable from `init(process_sets=[...])` or `add_process_set` on, which all ranks call with
    the same sets in the same order.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        self.ranks: list[int] | None = sorted(set(ranks))
        self.process_set_id: int | None = None
        self._executor: Executor | None = None

    def included(self) -> bool:
        """Whether this rank is a member."""
        return rank() in self._members()

    def rank(self) -> int:
        """This process's number in the set. ValueError if it is no member."""
        if not self.included():
            raise ValueError(f"rank {rank()} is not in the process set {self._members()}")
        return self._members().index(rank())

    def size(self) -> int:
        """How many members it has."""
        return len(self._members())

    def executor(self) -> Executor:
        """Of its operations. ValueError for a set that was not added, or has this rank not."""
        self.rank()
        if self._executor is None:
            raise ValueError(f"the process set {self.ranks} was not added; see add_process_set")
        return self._executor

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"

    def _members(self) -> list[int]:
        if not is_initialized():
            raise ValueError("not initialised: call ddl_horovod.torch.init() first")
        return list(range(size())) if self.ranks is None else self.ranks

    def _open(self, number: int) -> None:
        group = dist.new_group(self._members(), backend="ddl")
        if self.included():
            self._executor = Executor(group)
        self.process_set_id = number

    def _close(self) -> None:
        if self._executor is not None:
            self._executor.close()
        self._executor, self.process_set_id = None, None


global_process_set = ProcessSet([])
global_process_set.ranks = None  # all

_sets: dict[int, ProcessSet] = {}
_next_id = 0
_owns_world = False
_local: list[tuple[int, int]] = []  # of each rank: local_rank and local_size


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Join the job that this process was started in. A second call does nothing.

    comm          None; Horovod takes a communicator of MPI here, or some of the ranks, which is
                  not served
    process_sets  sets to add; "dynamic" is accepted, since sets can always be added later
    """
    global _owns_world
    if is_initialized():
        return
    if comm:
        raise ValueError(f"comm: {comm!r} is not served; give process_sets, or start fewer ranks")
    if isinstance(process_sets, str) and process_sets != "dynamic":
        raise ValueError(f'process_sets: {process_sets!r} is neither "dynamic" nor a list of sets')
    _owns_world = not ddl_torch.is_initialized()
    if _owns_world:
        ddl_torch.init()
    _local[:] = ddl_torch.allgather_object((ddl_torch.local_rank(), ddl_torch.local_size()))
    _add(global_process_set)
    for each in process_sets or ():
        if isinstance(each, ProcessSet):
            add_process_set(each)
    # Registered after PyTorch's own, it runs before them.
    atexit.unregister(shutdown)
    atexit.register(shutdown)


def shutdown() -> None:
    """Leave the job. `init` may then be called again."""
    global _owns_world, _next_id
    for each in _sets.values():
        each._close()
    _sets.clear()
    _next_id = 0
    if _owns_world:
        ddl_torch.shutdown()
    _owns_world = False


def is_initialized() -> bool:
    """Whether `init` was called, and `shutdown` was not since."""
    return bool(_sets) and ddl_torch.is_initialized()


def rank() -> int:
    """This process's number among all."""
    return int(_world().rank())


def size() -> int:
    """How many processes there are."""
    return int(_world().size())


def local_rank() -> int:
    """This process's number on its host."""
    return _of_host(rank())[0]


def local_size() -> int:
    """How many processes its host has."""
    return _of_host(rank())[1]


def cross_rank() -> int:
    """The number of this host among those that have this local rank."""
    return sum(_of_host(each)[0] == local_rank() for each in range(rank()))


def cross_size() -> int:
    """How many hosts have this local rank."""
    return sum(_of_host(each)[0] == local_rank() for each in range(size()))


def is_homogeneous() -> bool:
    """Whether all hosts have the same number of processes."""
    return len({_of_host(each)[1] for each in range(size())}) == 1


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Make a set usable, and return it. All ranks call it, whether they are members or not.
    ValueError for ranks that do not exist, and for a set that was added."""
    _world()
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    members = added._members()
    if not members or members[0] < 0 or members[-1] >= size():
        raise ValueError(f"process_set: {added} is not some of the {size()} ranks")
    for each in _sets.values():
        if each._members() == members:
            raise ValueError(f"process_set: {each} was added already")
    return _add(added)


def remove_process_set(process_set: ProcessSet) -> bool:
    """Give up a set. All ranks call it. Returns whether it was there; the set of all ranks
    stays."""
    number = process_set.process_set_id
    if process_set is global_process_set or number is None or _sets.get(number) is not process_set:
        return False
    del _sets[number]
    process_set._close()
    return True


def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    """The sets there are."""
    return {number: each._members() for number, each in _sets.items()}


def _add(added: ProcessSet) -> ProcessSet:
    global _next_id
    _sets[_next_id] = added
    added._open(_next_id)
    _next_id += 1
    return added


def _of_host(rank: int) -> tuple[int, int]:
    return _local[rank]


def _world() -> Any:
    if not is_initialized():
        raise ValueError("not initialised: call ddl_horovod.torch.init() first")
    return world_group()
