# SPDX-License-Identifier: Apache-2.0
"""libddl for MXNet 1.9, on CPUs.

    import ddl_mxnet as ddl

    ddl.init()
    net.initialize()
    parameters = net.collect_params()
    ddl.broadcast_parameters({name: each.data() for name, each in parameters.items()})
    trainer = ddl.DistributedTrainer(parameters, "sgd", {"learning_rate": 0.1})

The operations convert the arrays of mx.nd and mx.np to NumPy, and return new arrays of the same
kind. They have no gradients. MXNet 1.9 needs NumPy 1.23 or older.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import mxnet as mx
import numpy as np

from ddl_core import adapter_arrays, array_functions
from ddl_core.errors import InvalidArgument

if TYPE_CHECKING:
    from ddl_core.array_functions import *  # noqa: F403

__all__ = ["DistributedOptimizer", "DistributedTrainer", "allreduce_gradients"]
__all__ += array_functions.__all__

Array = np.ndarray[Any, Any]


class _World(adapter_arrays.ArrayWorld):
    def _read(self, argument: str, value: Any) -> Array:
        if not isinstance(value, mx.nd.NDArray):
            raise InvalidArgument(f"{argument} is a {type(value).__name__}, not an array of MXNet")
        return np.asarray(value.asnumpy())

    def _make(self, array: Array, like: Any) -> Any:
        kind = mx.np if isinstance(like, mx.np.ndarray) else mx.nd
        return kind.array(array, dtype=array.dtype, ctx=like.ctx)

    def _write(self, target: Any, array: Array) -> None:
        target[() if target.ndim == 0 else slice(None)] = self._make(array, target)


_world = _World("ddl_mxnet")
array_functions.export(globals(), _world)
allreduce_gradients = _world.allreduce_gradients


class DistributedTrainer(mx.gluon.Trainer):
    """A gluon.Trainer whose `step` first averages the gradients of all ranks, in one operation.

    `step` takes the size of this rank's batch. parameters, optimizer and options are passed to
    gluon.Trainer, without a kvstore.
    """

    def __init__(self, parameters: Any, optimizer: Any, options: Any = None) -> None:
        super().__init__(parameters, optimizer, options, kvstore=None)

    def _allreduce_grads(self) -> None:
        used = [each for each in self._params if each.grad_req != "null"]
        gradients = [each.list_grad()[0] for each in used]
        for gradient, average in zip(gradients, allreduce_gradients(gradients), strict=True):
            gradient[:] = average


def DistributedOptimizer(
    optimizer: Any, parameters: Mapping[str, Any], options: Any = None
) -> DistributedTrainer:
    """Return a DistributedTrainer, under the name that all adapters share."""
    return DistributedTrainer(parameters, optimizer, options)
