# SPDX-License-Identifier: Apache-2.0
"""Initialization and shutdown, ranks, and process sets, implemented with torch.distributed."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

import ddl_torch
from ddl_horovod import world
from ddl_horovod.common import HorovodInternalError
from ddl_horovod.executor import MemberCall
from ddl_horovod.torch import performers
from ddl_torch.world import group as world_group

__all__ = [
    "ProcessSet",
    "add_process_set",
    "cross_rank",
    "cross_size",
    "get_process_set_ids_and_ranks",
    "global_process_set",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "remove_process_set",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


class _TorchMembers:
    def __init__(self, group: Any) -> None:
        self.group = group

    def size(self) -> int:
        return int(self.group.size())

    def gather(self, data: bytes) -> list[bytes]:
        own = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        everyone = [torch.empty_like(own) for _ in range(self.size())]
        dist.all_gather(everyone, own, group=self.group)
        return [bytes(each.numpy()) for each in everyone]

    def take_part(self, call: MemberCall, calls: list[MemberCall]) -> None:
        tensors = [
            torch.zeros(shape, dtype=getattr(torch, dtype))
            for shape, dtype in zip(call.shapes, call.dtypes, strict=True)
        ]
        if call.kind == "allreduce":
            op, prescale, postscale = call.equal
            performers.allreduce(tensors, tensors, op, prescale, postscale)(self.group, calls)
        elif call.kind == "allreduce_packed":
            (zeros,) = tensors
            how = (zeros, torch.zeros_like(zeros), *call.equal)
            performers.allreduce_packed(*how)(self.group, calls)
        elif call.kind == "allgather":
            performers.allgather([tensor[:0] for tensor in tensors])(self.group, calls)
        else:
            dist.barrier(self.group)

    def internal(self, error: Exception) -> Exception:
        if isinstance(error, dist.DistBackendError):
            return HorovodInternalError(str(error))
        return error

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group(self.group)


class _Torch:
    name = "ddl_horovod.torch"

    def join(self) -> bool:
        if ddl_torch.is_initialized():
            return False
        ddl_torch.init()
        return True

    def leave(self) -> None:
        ddl_torch.shutdown()

    def is_initialized(self) -> bool:
        return bool(ddl_torch.is_initialized())

    def rank(self) -> int:
        return int(world_group().rank())

    def size(self) -> int:
        return int(world_group().size())

    def locals(self) -> list[tuple[int, int]]:
        return ddl_torch.allgather_object((ddl_torch.local_rank(), ddl_torch.local_size()))

    def open(self, ranks: list[int], included: bool) -> _TorchMembers | None:
        group = dist.new_group(ranks, backend="ddl")
        return _TorchMembers(group) if included else None


class ProcessSet(world.ProcessSet):
    __doc__ = world.ProcessSet.__doc__


_world = world.World(_Torch(), ProcessSet)
global_process_set = _world.everyone
init = _world.init
shutdown = _world.shutdown
is_initialized = _world.is_initialized
rank = _world.rank
size = _world.size
local_rank = _world.local_rank
local_size = _world.local_size
cross_rank = _world.cross_rank
cross_size = _world.cross_size
is_homogeneous = _world.is_homogeneous
start_timeline = _world.start_timeline
stop_timeline = _world.stop_timeline
add_process_set = _world.add_process_set
remove_process_set = _world.remove_process_set
get_process_set_ids_and_ranks = _world.get_process_set_ids_and_ranks
