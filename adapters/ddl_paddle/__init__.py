# SPDX-License-Identifier: Apache-2.0
"""libddl for PaddlePaddle, on CPUs.

    import ddl_paddle as ddl

    ddl.init()
    ddl.broadcast_parameters(model.state_dict())
    optimizer = ddl.DistributedOptimizer(paddle.optimizer.SGD(parameters=model.parameters()))

The operations convert the tensors of dynamic graphs to NumPy, and return new tensors. They have no
gradients, and cannot be part of static graphs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import paddle

from ddl_core import adapter_arrays, array_functions
from ddl_core.errors import InvalidArgument

if TYPE_CHECKING:
    from ddl_core.array_functions import *  # noqa: F403

__all__ = ["DistributedOptimizer", "allreduce_gradients"]
__all__ += array_functions.__all__

Array = np.ndarray[Any, Any]


class _World(adapter_arrays.ArrayWorld):
    def _read(self, argument: str, value: Any) -> Array:
        if not isinstance(value, paddle.Tensor):
            raise InvalidArgument(f"{argument} is a {type(value).__name__}, not a Paddle tensor")
        if value.dtype == paddle.bfloat16:  # Paddle gives NumPy the bits of bfloat16
            return np.asarray(value.numpy()).view(adapter_arrays.bfloat16())
        return np.asarray(value.numpy())

    def _make(self, array: Array, like: Any) -> Any:
        if array.dtype.name == "bfloat16":
            array = array.view(np.uint16)
        return paddle.to_tensor(array, dtype=like.dtype, place=like.place)

    def _write(self, target: Any, array: Array) -> None:
        target.set_value(self._make(array, target))


_world = _World("ddl_paddle")
array_functions.export(globals(), _world)
allreduce_gradients = _world.allreduce_gradients


class DistributedOptimizer(adapter_arrays.OptimizerOf):
    """A wrapper for a Paddle optimizer whose `step` and `minimize` first average the gradients of
    all ranks, in one operation. All ranks call these methods, with gradients of the same
    parameters. Other attributes are passed to the wrapped optimizer."""

    def step(self) -> None:
        """Average the gradients, and update the parameters."""
        self._average()
        self._optimizer.step()

    def minimize(self, loss: Any, *arguments: Any, **options: Any) -> Any:
        """Do the same as `step`. Older Paddle programs call this after `loss.backward()`."""
        self._average()
        return self._optimizer.minimize(loss, *arguments, **options)

    def _average(self) -> None:
        parameters: list[Any] = []
        for each in self._parameter_list:
            parameters += each["params"] if isinstance(each, dict) else [each]
        gradients = [each.grad for each in parameters if each.grad is not None]
        for gradient, average in zip(gradients, allreduce_gradients(gradients), strict=True):
            gradient.set_value(average)
