"""libddl for PaddlePaddle, on CPUs.

    import ddl_paddle as ddl

    ddl.init()
    ddl.broadcast_parameters(model.state_dict())
    optimizer = ddl.DistributedOptimizer(paddle.optimizer.SGD(parameters=model.parameters()))

The operations take the tensors of dynamic graphs through NumPy, and return new ones. They have no
gradients, and are no part of static graphs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle

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
        if not isinstance(value, paddle.Tensor):
            raise InvalidArgument(f"{argument}: is a {type(value).__name__}, not a Paddle tensor")
        if value.dtype == paddle.bfloat16:  # of which Paddle gives NumPy the bits
            return np.asarray(value.numpy()).view(_bfloat16())
        return np.asarray(value.numpy())

    def _make(self, array: Array, like: Any) -> Any:
        if array.dtype.name == "bfloat16":
            array = array.view(np.uint16)
        return paddle.to_tensor(array, dtype=like.dtype, place=like.place)

    def _write(self, target: Any, array: Array) -> None:
        target.set_value(self._make(array, target))


def _bfloat16() -> np.dtype[Any]:
    """NumPy's type, which the package ml_dtypes has."""
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


_world = _World("ddl_paddle")
init, shutdown, is_initialized = _world.init, _world.shutdown, _world.is_initialized
rank, size = _world.rank, _world.size
local_rank, local_size = _world.local_rank, _world.local_size
allreduce, grouped_allreduce = _world.allreduce, _world.grouped_allreduce
broadcast, allgather, alltoall = _world.broadcast, _world.allgather, _world.alltoall
reduce_scatter, barrier = _world.reduce_scatter, _world.barrier
broadcast_object, allgather_object = _world.broadcast_object, _world.allgather_object
allreduce_gradients, average_metrics = _world.allreduce_gradients, _world.average_metrics
broadcast_parameters = _world.broadcast_parameters


class DistributedOptimizer:
    """One of Paddle's optimizers, whose `step` averages the gradients of all ranks first, in one
    operation. Other attributes are those of the optimizer."""

    def __init__(self, optimizer: paddle.optimizer.Optimizer) -> None:
        self._optimizer = optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)

    def step(self) -> None:
        """All ranks call it, with gradients of the same parameters."""
        given = [each.grad for each in self._optimizer._parameter_list]
        gradients = [each for each in given if each is not None]
        for gradient, average in zip(gradients, allreduce_gradients(gradients), strict=True):
            gradient.set_value(average)
        self._optimizer.step()
