# SPDX-License-Identifier: Apache-2.0
"""libddl for Chainer: a communicator for ChainerMN that needs no MPI.

    import chainermn
    import ddl_chainer as ddl

    comm = ddl.create_communicator("ddl")
    data = chainermn.scatter_dataset(data if comm.rank == 0 else None, comm)
    optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.Adam(), comm).setup(model)

ChainerMN is part of Chainer 7. Its optimizer, evaluator, checkpointer, datasets, iterators, links
and functions with gradients accept this communicator. This package also exports them. Arrays are
NumPy arrays. This package also has the functions that all adapters of libddl share, for NumPy
arrays and for chainer.Variable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
from ddl_core import adapter_arrays, array_functions
from ddl_core.errors import InvalidArgument

if TYPE_CHECKING:
    from ddl_core.array_functions import *  # noqa: F403

__all__ = [
    "Communicator",
    "DistributedOptimizer",
    "allreduce_gradients",
    "create_communicator",
    "create_multi_node_checkpointer",
    "create_multi_node_evaluator",
    "create_multi_node_optimizer",
    "functions",
    "scatter_dataset",
    "scatter_index",
]
__all__ += array_functions.__all__

Array = np.ndarray[Any, Any]


class _World(adapter_arrays.ArrayWorld):
    def _read(self, argument: str, value: Any) -> Array:
        return super()._read(argument, value.array if _is_variable(value) else value)

    def _write(self, target: Any, array: Array) -> None:
        (target.array if _is_variable(target) else target)[...] = array


def _is_variable(value: Any) -> bool:
    return isinstance(value, (chainer.Variable, chainer.Parameter))


_world = _World("ddl_chainer")
array_functions.export(globals(), _world)
allreduce_gradients = _world.allreduce_gradients


def create_communicator(name: str = "ddl") -> Communicator:
    """Return the communicator of all ranks, like chainermn.create_communicator. Calls `init` if
    necessary. Raises InvalidArgument if `name` is not "ddl"."""
    if name != "ddl":
        raise InvalidArgument(
            f"name is {name!r}; must be 'ddl', the only communicator of ddl_chainer"
        )
    if not _world.is_initialized():
        _world.init()
    return Communicator(_world.comm())


def DistributedOptimizer(optimizer: Any) -> Any:
    """Return the optimizer of chainermn.create_multi_node_optimizer, with the communicator of all
    ranks. It averages the gradients before each update. The first update only gives all ranks the
    parameters of rank 0."""
    return create_multi_node_optimizer(optimizer, create_communicator())
