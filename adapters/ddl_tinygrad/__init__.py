# SPDX-License-Identifier: Apache-2.0
"""libddl for tinygrad.

    import ddl_tinygrad as ddl

    ddl.init()
    ddl.broadcast_parameters(nn.state.get_state_dict(model))
    optimizer = ddl.DistributedOptimizer(nn.optim.SGD(nn.state.get_parameters(model)))

The operations realize their tensors, take them through NumPy, and return new ones on the same
device. They are no part of what TinyJit captures, and have no gradients.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tinygrad import Tensor, dtypes

from ddl_core import adapter_arrays
from ddl_core.errors import InvalidArgument

__all__ = [
    "DistributedOptimizer",
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_gradients",
    "alltoall",
    "average_metrics",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_parameters",
    "grouped_allreduce",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "reduce_scatter",
    "shutdown",
    "size",
]

Array = np.ndarray[Any, Any]


class _World(adapter_arrays.ArrayWorld):
    def _read(self, argument: str, value: Any) -> Array:
        if not isinstance(value, Tensor):
            raise InvalidArgument(f"{argument}: is a {type(value).__name__}, not a tinygrad Tensor")
        if value.dtype in (dtypes.bfloat16, *dtypes.fp8s):
            raise InvalidArgument(f"{argument}: NumPy has no {value.dtype}; cast it first")
        return np.asarray(value.numpy())

    def _make(self, array: Array, like: Any) -> Any:
        return Tensor(array, device=like.device)

    def _write(self, target: Any, array: Array) -> None:
        target.assign(self._make(array, target)).realize()


_world = _World("ddl_tinygrad")
init, shutdown, is_initialized = _world.init, _world.shutdown, _world.is_initialized
rank, size = _world.rank, _world.size
local_rank, local_size = _world.local_rank, _world.local_size
allreduce, grouped_allreduce = _world.allreduce, _world.grouped_allreduce
broadcast, allgather, alltoall = _world.broadcast, _world.allgather, _world.alltoall
reduce_scatter, barrier = _world.reduce_scatter, _world.barrier
broadcast_object, allgather_object = _world.broadcast_object, _world.allgather_object
allreduce_gradients, average_metrics = _world.allreduce_gradients, _world.average_metrics
broadcast_parameters = _world.broadcast_parameters


class DistributedOptimizer(adapter_arrays.OptimizerOf):
    """One of tinygrad's optimizers, which averages the gradients of all ranks first, in one
    operation: in `step` and in `schedule_step`. All ranks call these, with gradients of the same
    parameters. Other attributes are those of the optimizer."""

    def step(self) -> None:
        """Average the gradients, and update the parameters."""
        Tensor.realize(*self.schedule_step())

    def schedule_step(self) -> list[Tensor]:
        """Average the gradients. Returns the tensors to realize, as tinygrad's optimizers do."""
        parameters = [each for each in self.params if each.grad is not None]
        averages = allreduce_gradients([each.grad for each in parameters])
        for each, average in zip(parameters, averages, strict=True):
            each.grad = average
        scheduled: list[Tensor] = self._optimizer.schedule_step()
        return scheduled
