# SPDX-License-Identifier: Apache-2.0
"""libddl for MLX, on CPUs.

    import ddl_mlx as ddl

    ddl.init()
    ddl.broadcast_parameters(dict(tree_flatten(model.parameters())))
    loss, gradients = nn.value_and_grad(model, loss_of)(model, images, labels)
    optimizer.update(model, ddl.allreduce_gradients(gradients))

The operations evaluate their arrays and return new ones. They cannot be used inside of mx.compile,
and have no gradients. MLX has a mx.distributed of its own, for its ring, MPI and NCCL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from ddl_core import adapter_arrays
from ddl_core.errors import InvalidArgument

if TYPE_CHECKING:
    from ddl_core.names import GradientOp

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
        if not isinstance(value, mx.array):
            raise InvalidArgument(f"{argument}: is a {type(value).__name__}, not an MLX array")
        if value.dtype != mx.bfloat16:
            return np.array(value)
        return np.array(value.view(mx.uint16)).view(adapter_arrays.bfloat16())

    def _make(self, array: Array, like: Any) -> Any:
        if array.dtype.name == "bfloat16":
            return mx.array(array.view(np.uint16)).view(mx.bfloat16)
        return mx.array(array, like.dtype)

    def _write(self, target: Any, array: Array) -> None:
        target[...] = self._make(array, target)


_world = _World("ddl_mlx")
init, shutdown, is_initialized = _world.init, _world.shutdown, _world.is_initialized
rank, size = _world.rank, _world.size
local_rank, local_size = _world.local_rank, _world.local_size
allreduce, grouped_allreduce = _world.allreduce, _world.grouped_allreduce
broadcast, allgather, alltoall = _world.broadcast, _world.allgather, _world.alltoall
reduce_scatter, barrier = _world.reduce_scatter, _world.barrier
broadcast_object, allgather_object = _world.broadcast_object, _world.allgather_object
average_metrics = _world.average_metrics
broadcast_parameters = _world.broadcast_parameters


def allreduce_gradients(gradients: Any, op: GradientOp = "average") -> Any:
    """All ranks' gradients, a tree of arrays such as value_and_grad gives, averaged or summed in
    one operation. Returns such a tree."""
    names, arrays = zip(*tree_flatten(gradients), strict=True)
    averages = _world.allreduce_gradients(arrays, op)
    return tree_unflatten(list(zip(names, averages, strict=True)))


class DistributedOptimizer(adapter_arrays.OptimizerOf):
    """One of MLX's optimizers, which averages the gradients of all ranks first: in `update` and in
    `apply_gradients`. All ranks call these, with gradients of the same parameters. Other attributes
    are those of the optimizer."""

    def update(self, model: Any, gradients: Any) -> None:
        """Average the gradients, and update the model."""
        model.update(self.apply_gradients(gradients, model))

    def apply_gradients(self, gradients: Any, parameters: Any) -> Any:
        """Average the gradients. Returns the new parameters."""
        return self._optimizer.apply_gradients(allreduce_gradients(gradients), parameters)
