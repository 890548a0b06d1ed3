# SPDX-License-Identifier: Apache-2.0
"""libddl for tinygrad.

    import ddl_tinygrad as ddl

    ddl.init()
    ddl.broadcast_parameters(nn.state.get_state_dict(model))
    optimizer = ddl.DistributedOptimizer(nn.optim.SGD(nn.state.get_parameters(model)))

The operations realize their tensors, convert them to NumPy, and return new tensors on the same
device. TinyJit cannot capture them, and they have no gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from tinygrad import Tensor, dtypes

from ddl_core import adapter_arrays, array_functions
from ddl_core.errors import InvalidArgument

if TYPE_CHECKING:
    from ddl_core.array_functions import *  # noqa: F403

__all__ = ["DistributedOptimizer", "allreduce_gradients"]
__all__ += array_functions.__all__

Array = np.ndarray[Any, Any]


class _World(adapter_arrays.ArrayWorld):
    def _read(self, argument: str, value: Any) -> Array:
        if not isinstance(value, Tensor):
            raise InvalidArgument(f"{argument} is a {type(value).__name__}, not a tinygrad Tensor")
        if value.dtype in (dtypes.bfloat16, *dtypes.fp8s):
            raise InvalidArgument(
                f"{argument}: NumPy does not support {value.dtype}; cast it first"
            )
        return np.asarray(value.numpy())

    def _make(self, array: Array, like: Any) -> Any:
        return Tensor(array, device=like.device)

    def _write(self, target: Any, array: Array) -> None:
        target.assign(self._make(array, target)).realize()


_world = _World("ddl_tinygrad")
array_functions.export(globals(), _world)
allreduce_gradients = _world.allreduce_gradients


class DistributedOptimizer(adapter_arrays.OptimizerOf):
    """A wrapper for a tinygrad optimizer whose `step` and `schedule_step` first average the
    gradients of all ranks, in one operation. All ranks call these methods, with gradients of the
    same parameters. Other attributes are passed to the wrapped optimizer."""

    def step(self) -> None:
        """Average the gradients, and update the parameters."""
        Tensor.realize(*self.schedule_step())

    def schedule_step(self) -> list[Tensor]:
        """Average the gradients. Return the tensors to realize, like tinygrad's optimizers."""
        parameters = [each for each in self.params if each.grad is not None]
        averages = allreduce_gradients([each.grad for each in parameters])
        for each, average in zip(parameters, averages, strict=True):
            each.grad = average
        scheduled: list[Tensor] = self._optimizer.schedule_step()
        return scheduled
