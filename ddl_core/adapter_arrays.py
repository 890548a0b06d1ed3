# SPDX-License-Identifier: Apache-2.0
"""The operations of adapters for frameworks whose arrays NumPy can read.

Such an adapter is one file. It defines how its framework's arrays are read and created, and
contains the functions for training. docs/adapters.md lists these adapters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ddl_core import adapter, adapter_objects
from ddl_core.comm import Comm
from ddl_core.errors import InvalidArgument

if TYPE_CHECKING:
    from ddl_core.base.names import GradientOp, Op

Array = np.ndarray[Any, Any]


class ArrayWorld(adapter.World):
    """A World with the collective operations for arrays that NumPy can read.

    An adapter overrides `_read` and `_make`, and `_write` if its arrays are not written by
    assignment to all elements. It exports the methods as its functions.

    All ranks call each operation, in the same order. Operations do not change their arguments. They
    raise InvalidArgument before anything is sent, InvalidState before `init`, and CommDead if ranks
    call different operations, a rank dies or the time limit passes.
    """

    # ---- overridden by adapters ----

    def _read(self, argument: str, value: Any) -> Array:
        """Return the value as an array of NumPy. Raises InvalidArgument if it is not an array of
        the framework."""
        return numpy_array(argument, value)

    def _make(self, array: Array, like: Any) -> Any:
        """Return the framework's array with these values, on the device of `like`."""
        return array

    def _write(self, target: Any, array: Array) -> None:
        target[...] = array

    # ---- operations ----

    def allreduce(self, array: Any, op: Op = "sum") -> Any:
        """Combine the ranks' arrays, element by element. All ranks get the same bits.

        array  of the same shape and type on all ranks
        op     "sum", "average", "min", "max", "product", "bit_and", "bit_or" or "bit_xor"
        """
        comm, own = self.comm(), self._own("array", array)
        result = comm.allreduce(own, np.empty_like(own), op=adapter.check_op(op))
        return self._make(result, array)

    def grouped_allreduce(self, arrays: Sequence[Any], op: Op = "sum") -> list[Any]:
        """Combine several arrays as `allreduce` does, in one operation. Small arrays are sent
        together.

        arrays   in the same order on all ranks; shapes and types may differ within the list
        """
        comm = self.comm()
        adapter.check_op(op)
        sent = [self._own(f"arrays[{index}]", array) for index, array in enumerate(arrays)]
        received = allreduce_together(comm, sent, op)
        return [self._make(result, array) for result, array in zip(received, arrays, strict=True)]

    def broadcast(self, array: Any, root: int = 0) -> Any:
        """Return the root's array on all ranks. On other ranks only shape and type of `array`
        matter."""
        comm, result = self.comm(), self._own("array", array).copy()
        comm.broadcast(result, adapter.check_rank("root", root, comm.size))
        return self._make(result, array)

    def allgather(self, array: Any) -> Any:
        """Concatenate the ranks' arrays along the first dimension.

        array: of the same shape and type on all ranks. Returns an array of shape (size *
        array.shape[0], ...), or of shape (size,) for a scalar.
        """
        comm, own = self.comm(), np.atleast_1d(self._own("array", array))
        received = np.empty((comm.size * len(own), *own.shape[1:]), own.dtype)
        return self._make(comm.allgather(own, received), array)

    def reduce_scatter(self, array: Any, op: Op = "sum") -> Any:
        """Return this rank's part of the result of `allreduce`. The parts are equal, along the
        first dimension."""
        comm, own = self.comm(), self._own("array", array)
        adapter.check_op(op)
        rows = adapter.equal_rows("array", own.shape, comm.size)
        received = np.empty((rows, *own.shape[1:]), own.dtype)
        return self._make(comm.reduce_scatter(own, received, op=op), array)

    def alltoall(self, array: Any) -> Any:
        """Send each rank its part of `array`. Return the received parts, concatenated in the order
        of ranks. The parts are equal, along the first dimension."""
        comm, own = self.comm(), self._own("array", array)
        adapter.equal_rows("array", own.shape, comm.size)
        return self._make(comm.alltoall(own, np.empty_like(own)), array)

    def barrier(self) -> None:
        """Wait until all ranks have called this."""
        self.comm().barrier()

    # ---- objects ----

    def broadcast_object(self, value: Any = None, root: int = 0) -> Any:
        """Return the root's object on all ranks. It is sent pickled. Other ranks' `value` is
        ignored."""
        comm = self.comm()
        return broadcast_object(comm, value, adapter.check_rank("root", root, comm.size))

    def allgather_object(self, value: Any) -> list[Any]:
        """Return all ranks' objects, in the order of ranks. They are sent pickled."""
        return allgather_object(self.comm(), value)

    # ---- training ----

    def allreduce_gradients(
        self, gradients: Sequence[Any], op: GradientOp = "average"
    ) -> list[Any]:
        """Average or sum all ranks' gradients in one operation."""
        adapter.check_gradients(op, None)
        return self.grouped_allreduce(gradients, op)

    def broadcast_parameters(self, parameters: Mapping[str, Any], root: int = 0) -> None:
        """Copy the root's values of named arrays to all ranks, in place."""
        comm = self.comm()
        adapter.check_rank("root", root, comm.size)
        for name, target in parameters.items():
            values = self._own(name, target).copy()
            self._write(target, comm.broadcast(values, root))

    def average_metrics(
        self, metrics: Mapping[str, float], weight: float = 1.0
    ) -> dict[str, float]:
        """Return the ranks' weighted average of each metric. `weight` is the weight of this rank's
        values, such as its number of samples. All ranks give the same names in the same order."""
        comm = self.comm()

        def allreduce(own: list[float]) -> Sequence[float]:
            sums: list[float] = comm.allreduce(np.array(own)).tolist()
            return sums

        return adapter.average_metrics(metrics, weight, allreduce)

    def _own(self, argument: str, value: Any) -> Array:
        """Return the argument as a contiguous array."""
        return np.asarray(self._read(argument, value), order="C")


class OptimizerOf:
    """A wrapper for a framework's optimizer. An adapter overrides the methods that use gradients,
    to average them first. All other attributes are read and set in the optimizer itself."""

    def __init__(self, optimizer: Any) -> None:
        self.__dict__["_optimizer"] = optimizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__.get("_optimizer"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._optimizer, name, value)


def bfloat16() -> np.dtype[Any]:
    """Return NumPy's type bfloat16, from the package ml_dtypes."""
    import ml_dtypes

    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found


def numpy_array(argument: str, value: Any) -> Array:
    """Return the value as an array of NumPy. Raises InvalidArgument for lists and numbers, which
    have no fixed type."""
    if not isinstance(value, (np.ndarray, np.generic)):
        raise InvalidArgument(f"{argument} is a {type(value).__name__}, not a NumPy array")
    return np.asarray(value)


# ---- operations on any comm ----


def allreduce_together(comm: Comm, arrays: Sequence[Array], op: Op) -> list[Array]:
    """Return the results of all-reduces of these arrays, in one group."""
    received = [np.empty_like(own) for own in arrays]
    if arrays:
        with comm.group() as group:
            for own, result in zip(arrays, received, strict=True):
                group.allreduce(own, result, op=op)
    return received


def broadcast_object(comm: Comm, value: Any, root: int) -> Any:
    """Return the root's object on all ranks. Raises TypeError on all ranks if it cannot be
    pickled."""
    text = pickled(value, root) if comm.rank == root else np.empty(0, np.uint8)
    length = comm.broadcast(np.array([len(text)]), root)
    if comm.rank != root:
        text = np.empty(length[0], np.uint8)
    received = comm.broadcast(text, root)
    if comm.rank == root:
        check(received)
        return value
    return unpickled(received)


def allgather_object(comm: Comm, value: Any) -> list[Any]:
    """Return all ranks' objects, in the order of ranks. Raises TypeError on all ranks if one of
    them cannot be pickled."""
    text = pickled(value, comm.rank)
    lengths = comm.allgather(np.array([len(text)]), np.empty(comm.size, np.int64)).tolist()
    received = comm.allgatherv(text, np.empty(sum(lengths), np.uint8), counts=lengths)
    ends = np.cumsum(lengths)
    return [unpickled(part) for part in np.split(received, ends[:-1])]


def pickled(value: Any, rank: int) -> Array:
    """Return a rank's object, pickled, as a writable array of bytes. If the object cannot be
    pickled, the array contains the error instead."""
    return np.frombuffer(bytearray(adapter_objects.packed(value, rank)), np.uint8)


def check(text: Array) -> None:
    """Raise TypeError if these bytes, which `pickled` returned, contain an error instead of an
    object."""
    adapter_objects.check(text.tobytes())


def unpickled(text: Array) -> Any:
    """Return the object in these bytes, which `pickled` returned. Raises TypeError if they contain
    an error instead."""
    return adapter_objects.unpacked(text.tobytes())
