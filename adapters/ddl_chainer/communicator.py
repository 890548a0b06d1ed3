# SPDX-License-Identifier: Apache-2.0
"""ChainerMN's communicator on a comm of libddl."""

from __future__ import annotations

import functools
import operator
import socket
from collections.abc import Callable, Sequence
from typing import Any

import chainermn
import numpy as np

import ddl_core
from ddl_chainer.overlap import Overlap
from ddl_core import adapter_arrays
from ddl_core.errors import InvalidArgument

Array = np.ndarray[Any, Any]


class Communicator(chainermn.CommunicatorBase):
    """ChainerMN's interface on a comm of libddl.

    The conventions for shapes, tuples and ranks that get a result are the same as in
    chainermn.communicators.MpiCommunicatorBase. Arrays keep their types. If a rank fails, or calls
    another operation, the other ranks' calls raise ddl_core.errors.CommDead.
    """

    def __init__(self, comm: ddl_core.Comm) -> None:
        super().__init__()
        self._comm = comm
        self._overlap: Overlap | None = None  # for the last loss of `overlapped`
        hosts = adapter_arrays.allgather_object(comm, socket.gethostname())
        here, order = hosts[comm.rank], list(dict.fromkeys(hosts))
        self._intra = hosts[: comm.rank].count(here), hosts.count(here)
        self._inter = order.index(here), len(order)

    rank = property(lambda self: self._comm.rank, doc="The number of this process among all ranks.")
    size = property(lambda self: self._comm.size, doc="The number of ranks.")
    intra_rank = property(
        lambda self: self._intra[0], doc="The number of this process on its host."
    )
    intra_size = property(lambda self: self._intra[1], doc="The number of ranks on its host.")
    inter_rank = property(lambda self: self._inter[0], doc="The number of its host.")
    inter_size = property(lambda self: self._inter[1], doc="The number of hosts.")

    def split(self, color: int, key: int) -> Communicator:
        """Create a communicator of the ranks that give the same color, ordered by key."""
        part = self._comm.split(color, key)
        assert part is not None
        return Communicator(part)

    def finalize(self) -> None:
        """Do nothing: `shutdown` leaves the job."""

    # ---- arrays ----

    def send(self, data: Any, dest: int, tag: int) -> None:
        """Send an array, or a tuple of arrays, to a rank that calls `recv` with this tag."""
        parts = [_array("data", part) for part in (data if isinstance(data, tuple) else [data])]
        kinds = [(part.shape, part.dtype) for part in parts]
        self.send_obj((isinstance(data, tuple), kinds), dest, tag)
        for part in parts:
            if part.size:
                self._comm.send(part, dest, tag=tag)

    def recv(self, source: int, tag: int) -> Any:
        """Return the array, or the tuple of arrays, that rank `source` passed to `send` with the
        same tag."""
        several, kinds = self.recv_obj(source, tag=tag)
        parts = [np.empty(shape, dtype) for shape, dtype in kinds]
        for part in parts:
            if part.size:
                self._comm.recv(part, source, tag=tag)
        return tuple(parts) if several else parts[0]

    def bcast(self, data: Any, root: int = 0) -> Array:
        """Return the root's array on all ranks. Other ranks' `data` is ignored."""
        own = _array("data", data) if self.rank == root else None
        shape, dtype = self.bcast_obj(None if own is None else (own.shape, own.dtype), root=root)
        received = np.empty(shape, dtype) if own is None else own.copy()
        return self._comm.broadcast(received, root)

    def allreduce(self, data: Any) -> Array:
        """Return the sum of all ranks' arrays, which have the same shape and type."""
        own = _array("data", data)
        return self._comm.allreduce(own, np.empty_like(own))

    def allgather(self, x: Any) -> tuple[Array, ...]:
        """Return all ranks' arrays in the order of ranks. Their shapes may differ."""
        own = _array("x", x)
        kinds = adapter_arrays.allgather_object(self._comm, (own.shape, own.dtype))
        counts = [_bytes(*kind) for kind in kinds]
        received = np.empty(sum(counts), np.uint8)
        return _parts(self._comm.allgatherv(_flat([own]), received, counts=counts), kinds)

    def gather(self, data: Any, root: int = 0) -> tuple[Array, ...] | None:
        """Return all ranks' arrays on the root, and None on other ranks."""
        own = _array("data", data)
        kinds = self.gather_obj((own.shape, own.dtype), root) or []
        counts = [_bytes(*kind) for kind in kinds]
        received = np.empty(sum(counts), np.uint8)
        result = self._comm.gatherv(_flat([own]), received, counts=counts or None, root=root)
        return None if result is None else _parts(result, kinds)

    def scatter(self, xs: Any, root: int = 0) -> Array:
        """Return the root's xs[rank] on each rank. Other ranks' `xs` is ignored."""
        own = None
        if self.rank == root:
            own = [_array(f"xs[{index}]", x) for index, x in enumerate(xs)]
            _check_length("xs", own, self.size)
        kinds = self.bcast_obj(own and [(x.shape, x.dtype) for x in own], root=root)
        counts = [_bytes(*kind) for kind in kinds]
        received = np.empty(counts[self.rank], np.uint8)
        self._comm.scatterv(own and _flat(own), received, counts=counts, root=root)
        return _parts(received, [kinds[self.rank]])[0]

    def alltoall(self, xs: Sequence[Any]) -> tuple[Array, ...]:
        """Send xs[r] to each rank r. Return the received arrays in the order of ranks. `xs` has one
        array for each rank."""
        own = [_array(f"xs[{index}]", x) for index, x in enumerate(xs)]
        _check_length("xs", own, self.size)
        everyones = adapter_arrays.allgather_object(self._comm, [(x.shape, x.dtype) for x in own])
        kinds = [each[self.rank] for each in everyones]
        counts = [_bytes(*kind) for kind in kinds]
        received = np.empty(sum(counts), np.uint8)
        sizes = [x.nbytes for x in own]
        self._comm.alltoallv(_flat(own), received, send_counts=sizes, recv_counts=counts)
        return _parts(received, kinds)

    # ---- objects, sent pickled ----

    def send_obj(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send an object to a rank that calls `recv_obj` with this tag."""
        text = adapter_arrays.pickled(obj, self.rank)
        self._comm.send(np.array([len(text)]), dest, tag=tag)
        self._comm.send(text, dest, tag=tag)
        adapter_arrays.check(text)

    def recv_obj(self, source: int, status: Any = None, tag: int = 0) -> Any:
        """Return the object that rank `source` passed to `send_obj` with the same tag. `status` is
        ignored."""
        length = np.empty(1, np.int64)
        self._comm.recv(length, source, tag=tag)
        text = np.empty(length[0], np.uint8)
        self._comm.recv(text, source, tag=tag)
        return adapter_arrays.unpickled(text)

    def bcast_obj(self, obj: Any, max_buf_len: int | None = None, root: int = 0) -> Any:
        """Return the root's object on all ranks. There is no size limit, so `max_buf_len` is
        ignored."""
        return adapter_arrays.broadcast_object(self._comm, obj, root)

    def gather_obj(self, obj: Any, root: int = 0) -> list[Any] | None:
        """Return all ranks' objects on the root, and None on other ranks."""
        everyones = adapter_arrays.allgather_object(self._comm, obj)
        return everyones if self.rank == root else None

    def allreduce_obj(self, obj: Any) -> Any:
        """Return the sum of all ranks' objects by the operator +, in the order of ranks."""
        everyones = adapter_arrays.allgather_object(self._comm, obj)
        return functools.reduce(operator.add, everyones)

    # ---- models ----

    def bcast_data(self, model: Any) -> None:
        """Copy rank 0's parameters to all ranks, in place."""
        if self._overlap:  # the first update of an optimizer needs no averages
            self.multi_node_mean_grad(model, zero_fill=True)
        for _, param in sorted(model.namedparams()):
            if param.array is not None:
                own = _array("param", param.array).copy()
                param.array[...] = self._comm.broadcast(own)

    def overlapped(self, model: Any, loss: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Return a loss function whose backward pass sends the gradients of the model's parameters
        as soon as they are complete.

        Pass it to StandardUpdater as `loss_func`, or to the optimizer's `update`. Either all ranks
        use one, or no rank.

        loss: the function that computes the loss; None: the model itself.
        """

        def prepared(*args: Any, **options: Any) -> Any:
            value = (loss or model)(*args, **options)
            self._overlap = Overlap(self._comm)
            self._overlap.prepare(value, model)
            return value

        return prepared

    def multi_node_mean_grad(self, model: Any, zero_fill: bool = False) -> None:
        """Average all gradients over the ranks, in one group of all-reduces. Gradients that the
        backward pass of an `overlapped` loss has already sent are not sent again.

        zero_fill: True to count a gradient that is None as zeros. If it is False, such a gradient
        is left out, and must be None on all ranks.
        """
        params = {name: param for name, param in model.namedparams() if param.array is not None}
        if zero_fill:
            for param in params.values():
                if param.grad is None:
                    param.grad = np.zeros_like(param.array)
        grads = {
            name: _array("grad", params[name].grad)
            for name in sorted(params)
            if params[name].grad is not None
        }
        overlap, self._overlap = self._overlap, None
        if overlap:
            averages = overlap.finish(grads)
        else:
            averages = adapter_arrays.allreduce_together(self._comm, [*grads.values()], "average")
        for name, average in zip(grads, averages, strict=True):
            params[name].grad = average

    def _multi_node_mean(self, sendbuf: Array | None, recvbuf: Array) -> None:
        """Set recvbuf to the ranks' average of sendbuf, or of recvbuf if sendbuf is None.
        ChainerMN's batch normalization and its AllreducePersistent call it."""
        own = _array("sendbuf", recvbuf if sendbuf is None else sendbuf)
        recvbuf[...] = self._comm.allreduce(own, np.empty_like(own), op="average")


def _array(argument: str, value: Any) -> Array:
    """Return the argument as a contiguous array."""
    return np.asarray(adapter_arrays.numpy_array(argument, value), order="C")


def _check_length(argument: str, given: Sequence[Any], size: int) -> None:
    if len(given) != size:
        raise InvalidArgument(
            f"{argument} has {len(given)} arrays; must have one for each of {size} ranks"
        )


def _bytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize


def _flat(arrays: Sequence[Array]) -> Array:
    """Return the bytes of the arrays, one after the other."""
    return np.concatenate([array.reshape(-1).view(np.uint8) for array in arrays])


def _parts(received: Array, kinds: Sequence[tuple[Any, Any]]) -> tuple[Array, ...]:
    """Return arrays of these shapes and types from the bytes: the inverse of `_flat`."""
    ends = np.cumsum([_bytes(*kind) for kind in kinds])
    parts = np.split(received, ends[:-1])
    return tuple(
        part.copy().view(dtype).reshape(shape)
        for part, (shape, dtype) in zip(parts, kinds, strict=True)
    )
