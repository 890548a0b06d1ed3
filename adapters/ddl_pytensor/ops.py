# SPDX-License-Identifier: Apache-2.0
"""The operations as Ops, with their gradients."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ddl_core import adapter, adapter_arrays
from ddl_core.errors import InvalidState
from ddl_pytensor.framework import Apply, Op, disconnected, not_implemented, register_numba, tensor

if TYPE_CHECKING:
    from ddl_core.base.names import Op as Reduction

Array = np.ndarray[Any, Any]


class _World(adapter_arrays.ArrayWorld):
    """The operations on NumPy arrays and shared variables."""

    def _read(self, argument: str, value: Any) -> Array:
        shared = hasattr(value, "get_value")
        return super()._read(argument, value.get_value() if shared else value)

    def _write(self, target: Any, array: Array) -> None:
        if hasattr(target, "set_value"):
            target.set_value(array)
        else:
            target[...] = array


world = _World("ddl_pytensor")


_numbers = itertools.count(1)


class _ArrayOp(Op):
    """The base class of the Ops. A subclass runs `_run` on NumPy's arrays, and builds its gradients
    with `_backward`.

    Operations are numbered as they are built, for two reasons. Two operations that are equal on one
    rank only, because of a constant that depends on the rank, are not merged there. And if the
    rewriting of graphs has changed the order on some ranks, the ranks detect it before they add up
    results of different operations.
    """

    __props__: tuple[str, ...] = ("number",)

    def __init__(self) -> None:
        self.number = next(_numbers)

    def make_node(self, *inputs: Any) -> Any:
        return Apply(self, list(inputs), [self._type(each)() for each in inputs])

    def perform(self, node: Any, inputs: Sequence[Any], outputs: Any, *_: Any) -> None:
        self._check_order()
        own = [np.asarray(each, order="C") for each in inputs]
        for storage, result in zip(outputs, self._run(own), strict=True):
            storage[0] = result

    def _check_order(self) -> None:
        last, first = world.comm().allreduce(np.array([self.number, -self.number]), op="max")
        if last != -first:
            raise InvalidState(
                f"rank {world.rank()} runs operation {self.number} of its graphs, but other"
                " ranks run"
                f" operations from {-first} to {last}: all ranks must compile the same graphs; use"
                " inputs or shared variables for values that depend on the rank, not constants"
            )

    def do_constant_folding(self, *_: Any) -> bool:
        """Return False: a rank's constant is combined with other ranks' constants at run time."""
        return False

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        given = [
            output.zeros_like() if isinstance(each.type, disconnected) else each
            for output, each in zip(outputs, cotangents, strict=True)
        ]
        backward = self._backward(given)
        if backward is None:
            return [not_implemented(self, index, each) for index, each in enumerate(inputs)]
        return backward

    L_op = pullback  # its name in Aesara and Theano

    def _type(self, given: Any) -> Any:
        """Return the type of the output for this input."""
        return given.type

    def _run(self, arrays: list[Array]) -> list[Array]:
        raise NotImplementedError

    def _backward(self, cotangents: list[Any]) -> list[Any] | None:
        raise NotImplementedError


class AllReduce(_ArrayOp):
    """The all-reduce of one or several tensors."""

    __props__ = ("number", "op")

    def __init__(self, op: Reduction) -> None:
        super().__init__()
        self.op: Reduction = op

    def _run(self, arrays: list[Array]) -> list[Array]:
        return adapter_arrays.allreduce_together(world.comm(), arrays, self.op)

    def _backward(self, cotangents: list[Any]) -> list[Any] | None:
        if self.op not in ("sum", "average"):
            return None
        result: list[Any] = self(*cotangents, return_list=True)
        return result


class _Rooted(_ArrayOp):
    __props__ = ("number", "root")

    def __init__(self, root: int) -> None:
        super().__init__()
        self.root = root


class Broadcast(_Rooted):
    def _run(self, arrays: list[Array]) -> list[Array]:
        return [world.comm().broadcast(arrays[0].copy(), self.root)]

    def _backward(self, cotangents: list[Any]) -> list[Any]:
        return [Reduce(self.root)(*cotangents)]


class Reduce(_Rooted):
    """The sum on the root, and zeros on other ranks."""

    def _run(self, arrays: list[Array]) -> list[Array]:
        result = np.zeros_like(arrays[0])
        world.comm().reduce(arrays[0], result, root=self.root)
        return [result]

    def _backward(self, cotangents: list[Any]) -> list[Any]:
        return [Broadcast(self.root)(*cotangents)]


class _Resized(_ArrayOp):
    """The base class of Ops whose output has another first dimension than the input."""

    def _type(self, given: Any) -> Any:
        known = getattr(given.type, "shape", None) or given.type.broadcastable
        return tensor.TensorType(given.dtype, (None, *known[1:]))


class AllGather(_Resized):
    def _run(self, arrays: list[Array]) -> list[Array]:
        return [world.allgather(arrays[0])]

    def _backward(self, cotangents: list[Any]) -> list[Any]:
        return [ReduceScatter("sum")(*cotangents)]


class ReduceScatter(_Resized):
    __props__ = ("number", "op")

    def __init__(self, op: Reduction) -> None:
        super().__init__()
        self.op: Reduction = op

    def _run(self, arrays: list[Array]) -> list[Array]:
        return [world.reduce_scatter(arrays[0], self.op)]

    def _backward(self, cotangents: list[Any]) -> list[Any] | None:
        if self.op not in ("sum", "average"):
            return None
        factor = 1 if self.op == "sum" else 1 / world.size()
        return [AllGather()(cotangents[0] * np.asarray(factor, cotangents[0].dtype))]


class AllToAll(_ArrayOp):
    def _run(self, arrays: list[Array]) -> list[Array]:
        adapter.equal_rows("array", arrays[0].shape, world.size())
        return [world.alltoall(arrays[0])]

    def _backward(self, cotangents: list[Any]) -> list[Any]:
        return [AllToAll()(*cotangents)]


for each in (AllReduce, Broadcast, Reduce, AllGather, ReduceScatter, AllToAll):
    register_numba(each)
