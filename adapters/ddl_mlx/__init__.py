# SPDX-License-Identifier: Apache-2.0
"""libddl for MLX, on CPUs.

    import ddl_mlx as ddl

    ddl.init()
    ddl.broadcast_parameters(dict(tree_flatten(model.parameters())))
    loss, gradients = nn.value_and_grad(model, loss_of)(model, images, labels)
    optimizer.update(model, ddl.allreduce_gradients(gradients))

The operations evaluate their arrays and return new ones. They cannot be used inside mx.compile, and
have no gradients. MLX's own mx.distributed supports its ring, MPI and NCCL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten

from ddl_core import adapter_arrays, array_functions
from ddl_core.errors import InvalidArgument

if TYPE_CHECKING:
    from ddl_core.array_functions import *  # noqa: F403
    from ddl_core.base.names import GradientOp

__all__ = ["DistributedOptimizer", "allreduce_gradients"]
__all__ += array_functions.__all__

Array = np.ndarray[Any, Any]


class _World(adapter_arrays.ArrayWorld):
    def _read(self, argument: str, value: Any) -> Array:
        if not isinstance(value, mx.array):
            raise InvalidArgument(f"{argument} is a {type(value).__name__}, not an MLX array")
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
array_functions.export(globals(), _world)


def allreduce_gradients(gradients: Any, op: GradientOp = "average") -> Any:
    """Average or sum all ranks' gradients in one operation. They are a tree of arrays, such as the
    result of value_and_grad. Return a tree of the same structure."""
    names, arrays = zip(*tree_flatten(gradients), strict=True)
    averages = _world.allreduce_gradients(arrays, op)
    return tree_unflatten(list(zip(names, averages, strict=True)))


class DistributedOptimizer(adapter_arrays.OptimizerOf):
    """A wrapper for an MLX optimizer whose `update` and `apply_gradients` first average the
    gradients of all ranks. All ranks call these methods, with gradients of the same parameters.
    Other attributes are passed to the wrapped optimizer."""

    def update(self, model: Any, gradients: Any) -> None:
        """Average the gradients, and update the model."""
        model.update(self.apply_gradients(gradients, model))

    def apply_gradients(self, gradients: Any, parameters: Any) -> Any:
        """Average the gradients. Return the new parameters."""
        return self._optimizer.apply_gradients(allreduce_gradients(gradients), parameters)
