# SPDX-License-Identifier: Apache-2.0
"""Initialization and shutdown, ranks, and process sets, implemented with comms of ddl_core."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import ddl_tensorflow
from ddl_core import Comm, adapter_arrays
from ddl_core.errors import DdlError
from ddl_horovod import world
from ddl_horovod.common import HorovodInternalError
from ddl_horovod.executor import MemberCall
from ddl_horovod.tensorflow import performers
from ddl_tensorflow.world import comm as job_comm

__all__ = [
    "cross_rank",
    "cross_size",
    "global_process_set",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]


class ArgumentRefused(tf.errors.InvalidArgumentError, ValueError):
    """An argument is wrong on this rank."""


class CallsMismatch(tf.errors.FailedPreconditionError, HorovodInternalError):
    """The members' calls do not match."""


class Failed(tf.errors.UnknownError, HorovodInternalError):
    """The operation failed: a rank exited, or the operation timed out."""


class _TensorFlowMembers:
    def __init__(self, comm: Comm) -> None:
        self.group = comm

    def size(self) -> int:
        return self.group.size

    def gather(self, data: bytes) -> list[bytes]:
        own = np.frombuffer(data, np.uint8)
        everyone = np.empty((self.size(), len(own)), np.uint8)
        self.group.allgather(own, everyone)
        return [each.tobytes() for each in everyone]

    def take_part(self, call: MemberCall, calls: list[MemberCall]) -> None:
        arrays = [
            np.zeros(shape, performers.dtype(name))
            for shape, name in zip(call.shapes, call.dtypes, strict=True)
        ]
        if call.kind == "allreduce":
            performers.allreduce(arrays, *call.equal)(self.group, calls)
        elif call.kind == "allreduce_packed":
            performers.allreduce_packed(arrays, *call.equal)(self.group, calls)
        elif call.kind == "allgather":
            performers.allgather([array[:0] for array in arrays])(self.group, calls)
        else:
            self.group.barrier()

    def internal(self, error: Exception) -> Exception:
        if isinstance(error, HorovodInternalError):
            return CallsMismatch(None, None, str(error))
        return Failed(None, None, str(error)) if isinstance(error, DdlError) else error

    def close(self) -> None:
        self.group.close()


class _TensorFlow:
    name = "ddl_horovod.tensorflow"

    def join(self) -> bool:
        if ddl_tensorflow.is_initialized():
            return False
        ddl_tensorflow.init()
        return True

    def leave(self) -> None:
        ddl_tensorflow.shutdown()

    def is_initialized(self) -> bool:
        return ddl_tensorflow.is_initialized()

    def rank(self) -> int:
        return ddl_tensorflow.rank()

    def size(self) -> int:
        return ddl_tensorflow.size()

    def locals(self) -> list[tuple[int, int]]:
        own: Any = (ddl_tensorflow.local_rank(), ddl_tensorflow.local_size())
        return adapter_arrays.allgather_object(job_comm(), own)

    def open(self, ranks: list[int], included: bool) -> _TensorFlowMembers | None:
        return _TensorFlowMembers(job_comm().subset(ranks)) if included else None


class ProcessSet(world.ProcessSet):
    __doc__ = world.ProcessSet.__doc__

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Make copies of a set refer to the same set."""
        return "global_process_set" if self is WORLD.everyone else (_added, (self.process_set_id,))


def _added(number: int) -> ProcessSet:
    return WORLD.process_set(number)


WORLD = world.World(_TensorFlow(), ProcessSet)
global_process_set = WORLD.everyone
init = WORLD.init
shutdown = WORLD.shutdown
is_initialized = WORLD.is_initialized
rank = WORLD.rank
size = WORLD.size
local_rank = WORLD.local_rank
local_size = WORLD.local_size
cross_rank = WORLD.cross_rank
cross_size = WORLD.cross_size
is_homogeneous = WORLD.is_homogeneous
start_timeline = WORLD.start_timeline
stop_timeline = WORLD.stop_timeline
add_process_set = WORLD.add_process_set
remove_process_set = WORLD.remove_process_set
get_process_set_ids_and_ranks = WORLD.get_process_set_ids_and_ranks
