# SPDX-License-Identifier: Apache-2.0
"""An adapter for NumPy: the functions that all adapters of libddl share, for NumPy's arrays.

    import adapter_numpy as ddl

    ddl.init()                       # started by ddlrun, mpirun, torchrun, srun, or alone
    ddl.broadcast_parameters(parameters)
    gradients = ddl.allreduce_gradients(gradients)
    ddl.shutdown()

docs/adapters.md explains it. It is a complete adapter: the tests of all adapters also run it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ddl_core import adapter
from ddl_core.errors import InvalidArgument

Array = np.ndarray[Any, Any]

# ---- joining and leaving ----

_world = adapter.World("adapter_numpy")
init = _world.init
is_initialized = _world.is_initialized
shutdown = _world.shutdown
rank = _world.rank
size = _world.size
local_rank = _world.local_rank
local_size = _world.local_size


# ---- operations ----


def allreduce(array: Array, op: str = "sum") -> Array:
    """Combine the ranks' arrays, element by element; all ranks get the same bits.

    array  of the same shape and type on all ranks
    op     "sum", "average", "min", "max", "product", "bit_and", "bit_or" or "bit_xor"

    All ranks call it. Raises InvalidArgument for values that are not arrays and for an unknown op,
    InvalidState before init, and ddl_core.errors.CommDead if ranks call different operations, a
    rank dies or the time limit passes.
    """
    comm, own = _world.comm(), _array("array", array)
    return comm.allreduce(own, np.empty_like(own), op=adapter.check_op(op))


def grouped_allreduce(arrays: Sequence[Array], op: str = "sum") -> list[Array]:
    """Combine several arrays as `allreduce` does, in one operation. Small arrays are sent together.

    arrays: in the same order on all ranks; shapes and types may differ within the list.
    """
    comm = _world.comm()
    adapter.check_op(op)
    sent = [_array(f"arrays[{index}]", array) for index, array in enumerate(arrays)]
    received = [np.empty_like(own) for own in sent]
    if sent:
        with comm.group() as group:
            for own, result in zip(sent, received, strict=True):
                group.allreduce(own, result, op=op)
            group.submit()
    return received


def broadcast(array: Array, root: int = 0) -> Array:
    """Return the root's array on all ranks. On other ranks only shape and type of `array`
    matter."""
    comm, result = _world.comm(), _array("array", array).copy()
    return comm.broadcast(result, adapter.check_rank("root", root, comm.size))


def allgather(array: Array) -> Array:
    """Concatenate the ranks' arrays along the first dimension.

    array: of the same shape and type on all ranks. Returns an array of shape (size *
    array.shape[0], ...), or of shape (size,) for a scalar.
    """
    comm, own = _world.comm(), np.atleast_1d(_array("array", array))
    return comm.allgather(own, np.empty((comm.size * len(own), *own.shape[1:]), own.dtype))


def reduce_scatter(array: Array, op: str = "sum") -> Array:
    """Return this rank's part of the result of `allreduce`. The parts are equal, along the first
    dimension."""
    comm, own = _world.comm(), _array("array", array)
    adapter.check_op(op)
    rows = adapter.equal_rows("array", own.shape, comm.size)
    return comm.reduce_scatter(own, np.empty((rows, *own.shape[1:]), own.dtype), op=op)


def alltoall(array: Array) -> Array:
    """Send each rank its part of `array`. Return the received parts, concatenated in the order of
    ranks. The parts are equal, along the first dimension."""
    comm, own = _world.comm(), _array("array", array)
    adapter.equal_rows("array", own.shape, comm.size)
    return comm.alltoall(own, np.empty_like(own))


def barrier() -> None:
    """Wait until all ranks have called this."""
    _world.comm().barrier()


# ---- training ----


def allreduce_gradients(gradients: Sequence[Array], op: str = "average") -> list[Array]:
    """Average or sum all ranks' gradients in one operation."""
    adapter.check_gradients(op, None)
    return grouped_allreduce(gradients, op)


def broadcast_parameters(parameters: Mapping[str, Array], root: int = 0) -> None:
    """Copy the root's values of named arrays to all ranks, in place."""
    for array in parameters.values():
        array[...] = broadcast(array, root)


def average_metrics(metrics: Mapping[str, float], weight: float = 1.0) -> dict[str, float]:
    """Return the ranks' weighted average of each metric. `weight` is the weight of this rank's
    values, such as its number of samples. All ranks give the same names in the same order."""
    return adapter.average_metrics(metrics, weight, lambda own: allreduce(np.array(own)).tolist())


def _array(argument: str, value: Any) -> Array:
    """Return the argument as a contiguous array. Raises InvalidArgument for lists and numbers,
    which have no fixed type."""
    if not isinstance(value, (np.ndarray, np.generic)):
        raise InvalidArgument(f"{argument}: is a {type(value).__name__}, not a NumPy array")
    return np.asarray(value, order="C")
