# SPDX-License-Identifier: Apache-2.0
"""libddl for MXNet 1.9, on CPUs.

    import ddl_mxnet as ddl

    ddl.init()
    net.initialize()
    parameters = net.collect_params()
    ddl.broadcast_parameters({name: each.data() for name, each in parameters.items()})
    trainer = ddl.DistributedTrainer(parameters, "sgd", {"learning_rate": 0.1})

The operations take the arrays of mx.nd and mx.np through NumPy, and return new ones of the same
kind. They have no gradients. MXNet 1.9 needs NumPy 1.23 or older.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mxnet as mx
import numpy as np

from ddl_core import adapter_arrays
from ddl_core.errors import InvalidArgument

__all__ = [
    "DistributedOptimizer",
    "DistributedTrainer",
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
        if not isinstance(value, mx.nd.NDArray):
            raise InvalidArgument(f"{argument}: is a {type(value).__name__}, not an array of MXNet")
        return np.asarray(value.asnumpy())

    def _make(self, array: Array, like: Any) -> Any:
        kind = mx.np if isinstance(like, mx.np.ndarray) else mx.nd
        return kind.array(array, dtype=array.dtype, ctx=like.ctx)

    def _write(self, target: Any, array: Array) -> None:
        target[() if target.ndim == 0 else slice(None)] = self._make(array, target)


_world = _World("ddl_mxnet")
init, shutdown, is_initialized = _world.init, _world.shutdown, _world.is_initialized
rank, size = _world.rank, _world.size
local_rank, local_size = _world.local_rank, _world.local_size
allreduce, grouped_allreduce = _world.allreduce, _world.grouped_allreduce
broadcast, allgather, alltoall = _world.broadcast, _world.allgather, _world.alltoall
reduce_scatter, barrier = _world.reduce_scatter, _world.barrier
broadcast_object, allgather_object = _world.broadcast_object, _world.allgather_object
allreduce_gradients, average_metrics = _world.allreduce_gradients, _world.average_metrics
broadcast_parameters = _world.broadcast_parameters


class DistributedTrainer(mx.gluon.Trainer):
    """gluon.Trainer, whose `step` averages the gradients of all ranks first, in one operation.

    batch_size, of `step`, is this rank's. parameters, optimizer and options are as of
    gluon.Trainer; there is no kvstore.
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
    """A DistributedTrainer, by the name that all adapters have."""
    return DistributedTrainer(parameters, optimizer, options)
