# SPDX-License-Identifier: Apache-2.0
"""The functions that an adapter of arrays exports: the methods of its world.

    if TYPE_CHECKING:  # for type checkers; `export` defines the names
        from ddl_core.array_functions import *  # noqa: F403

    __all__ = ["DistributedOptimizer", "allreduce_gradients"]
    __all__ += array_functions.__all__
    _world = _World("ddl_NAME")
    array_functions.export(globals(), _world)
    allreduce_gradients = _world.allreduce_gradients

`allreduce_gradients` is not exported here, since the gradients of some frameworks are trees. The
functions of this module itself take NumPy's arrays. They exist only for type checkers.
"""

from __future__ import annotations

from typing import Any

from ddl_core.adapter_arrays import ArrayWorld

__all__ = [
    "allgather",
    "allgather_object",
    "allreduce",
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

_world = ArrayWorld(__name__)
init, shutdown, is_initialized = _world.init, _world.shutdown, _world.is_initialized
rank, size = _world.rank, _world.size
local_rank, local_size = _world.local_rank, _world.local_size
allreduce, grouped_allreduce = _world.allreduce, _world.grouped_allreduce
broadcast, allgather, alltoall = _world.broadcast, _world.allgather, _world.alltoall
reduce_scatter, barrier = _world.reduce_scatter, _world.barrier
broadcast_object, allgather_object = _world.broadcast_object, _world.allgather_object
average_metrics, broadcast_parameters = _world.average_metrics, _world.broadcast_parameters


def export(namespace: dict[str, Any], world: ArrayWorld) -> None:
    """Define the functions in the namespace of an adapter's package, as methods of its world."""
    namespace.update({name: getattr(world, name) for name in __all__})
