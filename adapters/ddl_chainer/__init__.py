# SPDX-License-Identifier: Apache-2.0
"""libddl for Chainer: ChainerMN with a communicator that needs no MPI.

    import chainermn
    import ddl_chainer as ddl

    comm = ddl.create_communicator("ddl")
    data = chainermn.scatter_dataset(data if comm.rank == 0 else None, comm)
    optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.Adam(), comm).setup(model)

ChainerMN comes with Chainer 7. All of it that takes a communicator takes this one: its optimizer,
evaluator and checkpointer, datasets, iterators, links, and functions with gradients. They are names
of this package as well. Arrays are those of NumPy. The names that all adapters of libddl share are
here too, for the same arrays and for chainer.Variable.
"""

from __future__ import annotations

from typing import Any

import chainer
import numpy as np
from chainermn import (
    create_multi_node_checkpointer,
    create_multi_node_evaluator,
    create_multi_node_optimizer,
    functions,
    scatter_dataset,
    scatter_index,
)

from ddl_chainer.communicator import Communicator
from ddl_core import adapter_arrays
from ddl_core.errors import InvalidArgument

__all__ = [
    "Communicator",
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
    "create_communicator",
    "create_multi_node_checkpointer",
    "create_multi_node_evaluator",
    "create_multi_node_optimizer",
    "functions",
    "grouped_allreduce",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "reduce_scatter",
    "scatter_dataset",
    "scatter_index",
    "shutdown",
    "size",
]

Array = np.ndarray[Any, Any]


class _World(adapter_arrays.ArrayWorld):
    def _read(self, argument: str, value: Any) -> Array:
        return super()._read(argument, value.array if _is_variable(value) else value)

    def _write(self, target: Any, array: Array) -> None:
        (target.array if _is_variable(target) else target)[...] = array


def _is_variable(value: Any) -> bool:
    return isinstance(value, (chainer.Variable, chainer.Parameter))


_world = _World("ddl_chainer")
init, shutdown, is_initialized = _world.init, _world.shutdown, _world.is_initialized
rank, size = _world.rank, _world.size
local_rank, local_size = _world.local_rank, _world.local_size
allreduce, grouped_allreduce = _world.allreduce, _world.grouped_allreduce
broadcast, allgather, alltoall = _world.broadcast, _world.allgather, _world.alltoall
reduce_scatter, barrier = _world.reduce_scatter, _world.barrier
broadcast_object, allgather_object = _world.broadcast_object, _world.allgather_object
allreduce_gradients, average_metrics = _world.allreduce_gradients, _world.average_metrics
broadcast_parameters = _world.broadcast_parameters


def create_communicator(name: str = "ddl") -> Communicator:
    """The communicator of all ranks, as chainermn.create_communicator gives one. Calls `init` if
    the program has not. InvalidArgument for another name than "ddl"."""
    if name != "ddl":
        raise InvalidArgument(f"name: {name!r} is not ddl, the only communicator of ddl_chainer")
    if not is_initialized():
        init()
    return Communicator(_world.comm())


def DistributedOptimizer(optimizer: Any) -> Any:
    """`create_multi_node_optimizer` with the communicator of all ranks: averages the gradients
    before each update. The first update only gives all ranks the parameters of rank 0."""
    return create_multi_node_optimizer(optimizer, create_communicator())
