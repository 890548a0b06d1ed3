# SPDX-License-Identifier: Apache-2.0
"""libddl for PyTensor, and for its ancestors Aesara 2.9 and Theano-PyMC 1.1.

    import pytensor
    import ddl_pytensor as ddl

    ddl.init()
    ddl.broadcast_parameters({"w": w})
    loss_of_all = ddl.allreduce(loss, op="average")
    gradients = ddl.allreduce_gradients(pytensor.grad(loss, [w]))
    step = pytensor.function([x, y], loss_of_all, updates=[(w, w - 0.1 * gradients[0])])

The operations accept tensor variables, and NumPy arrays as constants. They are Ops in the graph,
with gradients, in every mode that runs C, Python or Numba. JAX's mode is not supported: use
ddl_jax. The framework is the first of pytensor, aesara and theano that the program has imported. If
the program has imported none, it is the first one that is installed.

A compiled function runs its operations in the order of the graph, so all ranks must compile the
same graphs. Derivatives refer to the sum of all ranks' results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ddl_core import adapter
from ddl_core.errors import InvalidArgument
from ddl_pytensor.framework import framework, tensor
from ddl_pytensor.ops import AllGather, AllReduce, AllToAll, Broadcast, ReduceScatter, world

if TYPE_CHECKING:
    from ddl_core.base.names import GradientOp, Op

__all__ = [
    "allgather",
    "allgather_object",
    "allreduce",
    "allreduce_gradients",
    "alltoall",
    "average_metrics",
    "average_updates",
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

init, shutdown, is_initialized = world.init, world.shutdown, world.is_initialized
rank, size = world.rank, world.size
local_rank, local_size = world.local_rank, world.local_size
barrier, average_metrics = world.barrier, world.average_metrics
broadcast_object, allgather_object = world.broadcast_object, world.allgather_object
broadcast_parameters = world.broadcast_parameters  # takes shared variables


def allreduce(array: Any, op: Op = "sum") -> Any:
    """Combine the ranks' tensors, element by element; all ranks get the same bits.

    array  of the same shape and type on all ranks
    op     "sum", "average", "min", "max", "product", "bit_and", "bit_or" or "bit_xor"

    Returns a tensor variable like `array`. Sum and average have gradients. Raises InvalidArgument
    for values that are not tensors and for an unknown op, and InvalidState before `init`. The
    compiled function raises ddl_core.errors.CommDead if ranks call different operations or a rank
    dies.
    """
    world.comm()
    return AllReduce(adapter.check_op(op))(_tensor("array", array))


def grouped_allreduce(arrays: Sequence[Any], op: Op = "sum") -> list[Any]:
    """Combine several tensors as `allreduce` does, in one operation. Small tensors are sent
    together. Shapes and types may differ."""
    world.comm()
    group = AllReduce(adapter.check_op(op))
    given = [_tensor(f"arrays[{index}]", array) for index, array in enumerate(arrays)]
    return group(*given, return_list=True) if given else []


def broadcast(array: Any, root: int = 0) -> Any:
    """Return the root's tensor on all ranks. On other ranks only shape and type of `array`
    matter."""
    chosen = adapter.check_rank("root", root, size())
    return Broadcast(chosen)(_tensor("array", array))


def allgather(array: Any) -> Any:
    """Concatenate the ranks' tensors along the first dimension. The result has the shape (size *
    array.shape[0], ...), or (size,) for a scalar."""
    world.comm()
    given = _tensor("array", array)
    return AllGather()(given if given.ndim else tensor.shape_padleft(given))


def reduce_scatter(array: Any, op: Op = "sum") -> Any:
    """Return this rank's part of the result of `allreduce`. The parts are equal, along the first
    dimension."""
    world.comm()
    return ReduceScatter(adapter.check_op(op))(_divided("array", array))


def alltoall(array: Any) -> Any:
    """Send each rank its part of `array`. Return the received parts, concatenated in the order of
    ranks. The parts are equal, along the first dimension."""
    return AllToAll()(_divided("array", array))


def allreduce_gradients(gradients: Sequence[Any], op: GradientOp = "average") -> list[Any]:
    """Average or sum all ranks' gradients in one operation."""
    adapter.check_gradients(op, None)
    return grouped_allreduce(gradients, op)


def average_updates(updates: Any) -> list[tuple[Any, Any]]:
    """Return a function's updates with the new values of all shared variables of floats averaged
    over the ranks, by one operation. Other updates, such as counters and the states of random
    generators, do not change.

    updates: pairs of a shared variable and its new value, or a mapping. Returns pairs.
    """
    items = updates.items() if isinstance(updates, Mapping) else updates
    pairs = [(shared, shared.type.filter_variable(new)) for shared, new in items]
    chosen = [i for i, (shared, _) in enumerate(pairs) if "float" in getattr(shared, "dtype", "")]
    averages = grouped_allreduce([pairs[index][1] for index in chosen], "average")
    for index, average in zip(chosen, averages, strict=True):
        pairs[index] = pairs[index][0], average
    return pairs


def _tensor(argument: str, value: Any) -> Any:
    """Return the argument as a tensor variable. Raises InvalidArgument for lists and numbers, which
    have no fixed type."""
    if isinstance(value, (np.ndarray, np.generic)):
        return tensor.as_tensor_variable(value)
    if not isinstance(getattr(value, "type", None), tensor.TensorType):
        name = type(value).__name__
        raise InvalidArgument(f"{argument} is a {name}, not a tensor of {framework.__name__}")
    return value


def _divided(argument: str, value: Any) -> Any:
    """Return the argument as a tensor. Raises InvalidArgument if its first dimension is known and
    cannot be divided by the number of ranks."""
    ranks, given = size(), _tensor(argument, value)
    shape = given.data.shape if hasattr(given, "data") else (0,) * given.ndim
    adapter.equal_rows(argument, shape, ranks)
    return given
