# SPDX-License-Identifier: Apache-2.0
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
            return np.asarray(value.numpy()).view(adapter_arrays.bfloat16())
        return np.asarray(value.numpy())

    def _make(self, array: Array, like: Any) -> Any:
        if array.dtype.name == "bfloat16":
            array = array.view(np.uint16)
        return paddle.to_tensor(array, dtype=like.dtype, place=like.place)

    def _write(self, target: Any, array: Array) -> None:
        target.set_value(self._make(array, target))


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


class DistributedOptimizer(adapter_arrays.OptimizerOf):
    """One of Paddle's optimizers, which averages the gradients of all ranks first, in one
    operation: in `step` and in `minimize`. All ranks call these, with gradients of the same
    parameters. Other attributes are those of the optimizer."""

    def step(self) -> None:
        """Average the gradients, and update the parameters."""
        self._average()
        self._optimizer.step()

    def minimize(self, loss: Any, *arguments: Any, **options: Any) -> Any:
        """The same, as Paddle's older programs call it after `loss.backward()`."""
        self._average()
        return self._optimizer.minimize(loss, *arguments, **options)

    def _average(self) -> None:
        parameters = []
        for each in self._parameter_list:
            parameters += each["params"] if isinstance(each, dict) else [each]
        gradients = [each.grad for each in parameters if each.grad is not None]
        for gradient, average in zip(gradients, allreduce_gradients(gradients), strict=True):
            gradient.set_value(average)
