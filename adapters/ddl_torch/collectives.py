# SPDX-License-Identifier: Apache-2.0
"""Operations on tensors of all ranks, under the names that all adapters of libddl share.

All have gradients of any order; among the reductions, sums and averages. All ranks call a backward
operation, as they called the operation. So the tensors require grad on all ranks or on none, and
on every rank the results are part of what backward() is called on. Asynchronous operations have
gradients too; backward waits for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ddl_torch import gradients
from ddl_torch._autoload import backend_of
from ddl_torch.ops import OPS
from ddl_torch.world import adapter, group, rank, size

if TYPE_CHECKING:
    from ddl_core.names import Op

Result = TypeVar("Result")

# Renamed in PyTorch 2.13.
_equal_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Work(Generic[Result]):
    """A pending operation. Its tensors must not be touched before it is complete. They are kept
    alive until then, even if the Work is dropped."""

    def __init__(self, work: Any, result: Result) -> None:
        self._work = work
        self._result = result

    def wait(self, timeout: float | None = None) -> Result:
        """Wait until the operation is complete, and return its result. Waiting again returns, or
        raises, the same.

        timeout: seconds; None: no limit but the operation's own. Raises
        torch.distributed.DistBackendError when it passes, the work then being pending still, and
        when the operation fails.
        """
        if self._work is None:  # an empty group
            return self._result
        if timeout is None:
            self._work.wait()
        else:
            self._work.wait(timedelta(seconds=max(timeout, 0.001)))
        return self._result

    def done(self) -> bool:
        """Whether the operation has ended, successfully or not. Does not block."""
        done: bool = self._work is None or self._work.is_completed()
        return done

    def future(self) -> torch.futures.Future[list[Tensor]]:
        """Return a future of the list of the operation's output tensors, for callbacks. An
        all-gather of equal shapes has one output, stacked by rank."""
        future: torch.futures.Future[list[Tensor]]
        if self._work is None:
            future = torch.futures.Future()
            future.set_result([])
        else:
            future = self._work.get_future()
        return future


def allreduce(tensor: Tensor, op: Op = "sum", out: Tensor | None = None) -> Tensor:
    """Combine the ranks' tensors, element by element; all ranks get the same bits.

    tensor   of the same shape and type on all ranks, in CPU memory or on a GPU
    op       "sum", "average", "min", "max", "product", "bit_and", "bit_or" or "bit_xor". Integers
             wrap; their average truncates
    out      what gets the result, of the same shape and type; may be `tensor` itself. None: a new
             tensor

    All ranks call it. Has a gradient for sums and averages, but not into `out`: that of all ranks'
    results. Raises ddl_core.errors.InvalidArgument for an unknown op or an unfit `out`, TypeError
    for what is no tensor and for an element type that cannot be reduced, NotImplementedError for an
    op that the type does not have, and in backward for one that has no gradient, ValueError for a
    tensor that is not dense or on a device that the group has not, RuntimeError for `out` where a
    gradient is needed, InvalidState before init, and torch.distributed.DistBackendError when ranks
    call different things, a rank dies, or the time passes.
    """
    return _allreduce(tensor, op, out, False).wait()


def allreduce_async(tensor: Tensor, op: Op = "sum", out: Tensor | None = None) -> Work[Tensor]:
    """Start `allreduce`. `tensor` may be changed at once, `out` not before the work is complete."""
    return _allreduce(tensor, op, out, True)


def _allreduce(tensor: Tensor, op: str, out: Tensor | None, is_async: bool) -> Work[Tensor]:
    reduction = _reduction(op)

    def start(own: Tensor) -> tuple[Any, list[Tensor]]:
        target = _prepared(own, out)
        return dist.all_reduce(target, reduction, group=group(), async_op=is_async), [target]

    def transpose(gradient: Tensor) -> list[Tensor]:
        return [allreduce(gradient, _linear("allreduce", op))]

    own = _checked("tensor", tensor)
    work, (result,) = gradients.start(start, transpose, [own], _outs(out))
    return Work(work, result)


def grouped_allreduce(
    tensors: Sequence[Tensor], op: Op = "sum", out: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """`allreduce` of several tensors as one operation, in which small ones travel together.

    tensors  in the same order on all ranks; they may be of different shapes and types
    out      what gets the results, one for each tensor; may be `tensors` itself

    All ranks call it. Raises like `allreduce`.
    """
    return grouped_allreduce_async(tensors, op, out).wait()


def grouped_allreduce_async(
    tensors: Sequence[Tensor], op: Op = "sum", out: Sequence[Tensor] | None = None
) -> Work[list[Tensor]]:
    """Start `grouped_allreduce`."""
    for name, several in (("tensors", tensors), ("out", out)):
        if isinstance(several, Tensor):
            raise TypeError(f"{name}: is one tensor; give a list of tensors, or call allreduce")
    if out is not None and len(out) != len(tensors):
        raise _invalid(f"out: has {len(out)} tensors, but there are {len(tensors)}")
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = _reduction(op)
    given = [_checked(f"tensors[{number}]", tensor) for number, tensor in enumerate(tensors)]
    outs = [_checked(f"out[{number}]", tensor) for number, tensor in enumerate(out or ())]
    if not given:
        return Work(None, [])

    def start(*own: Tensor) -> tuple[Any, list[Tensor]]:
        targets = list(map(_prepared, own, outs or [None] * len(own)))
        return group().allreduce_coalesced(targets, options), targets

    def transpose(*moved: Tensor) -> list[Tensor | None]:
        # All tensors that can have a gradient, so that the ranks reduce the same ones.
        which = [number for number, each in enumerate(moved) if _has_gradient(each)]
        linear = _linear("grouped_allreduce", op)
        results = iter(grouped_allreduce([moved[number] for number in which], linear))
        return [next(results) if number in which else None for number in range(len(moved))]

    work, results = gradients.start(start, transpose, given, outs)
    return Work(work, list(results))


def broadcast(tensor: Tensor, root: int = 0, out: Tensor | None = None) -> Tensor:
    """The root's tensor, on all ranks.

    tensor   of the same shape and type on all ranks, in CPU memory; any element type. On other
             ranks than the root its values do not matter
    root     the rank whose values all get
    out      as for `allreduce`

    All ranks call it. Its gradient on the root is the sum of all ranks' gradients, elsewhere 0; so
    where the root's tensor requires grad, those of the others do as well. Raises like `allreduce`;
    InvalidArgument for a root that is no rank.
    """
    return _broadcast(tensor, root, out, False).wait()


def broadcast_async(tensor: Tensor, root: int = 0, out: Tensor | None = None) -> Work[Tensor]:
    """Start `broadcast`."""
    return _broadcast(tensor, root, out, True)


def _broadcast(tensor: Tensor, root: int, out: Tensor | None, is_async: bool) -> Work[Tensor]:
    adapter().check_rank("root", root, size())

    def start(own: Tensor) -> tuple[Any, list[Tensor]]:
        target = _prepared(own, out)
        return dist.broadcast(target, root, group=group(), async_op=is_async), [target]

    def transpose(gradient: Tensor) -> list[Tensor]:
        total = allreduce(gradient)
        return [total if rank() == root else total * 0]

    own = _checked("tensor", tensor)
    work, (result,) = gradients.start(start, transpose, [own], _outs(out))
    return Work(work, result)


def allgather(tensor: Tensor, rows: Sequence[int] | None = None) -> Tensor:
    """The ranks' tensors one after the other, along the first dimension.

    tensor   of the same shape and type on all ranks, in CPU memory; any element type
    rows     for tensors that differ in the first dimension: its size on each rank

    Returns a tensor of shape (size * tensor.shape[0], ...); of shape (size,) for a scalar. All
    ranks call it. Raises like `allreduce`.
    """
    return allgather_async(tensor, rows).wait()


def allgather_async(tensor: Tensor, rows: Sequence[int] | None = None) -> Work[Tensor]:
    """Start `allgather`. `tensor` must not be changed before the work is complete."""
    given = _checked("tensor", tensor)
    given = given.reshape(given.shape or (1,))
    counts = _rows("rows", rows, len(given))
    if counts[rank()] != len(given):
        raise _invalid(f"rows: is {counts[rank()]} for this rank, whose tensor has {len(given)}")

    def start(own: Tensor) -> tuple[Any, list[Tensor]]:
        own = own.detach()
        target = own.new_empty(sum(counts), *own.shape[1:])
        parts = list(target.split(counts))
        return dist.all_gather(parts, own, group=group(), async_op=True), [target]

    def transpose(gradient: Tensor) -> list[Tensor]:
        return [_reduce_scatter(gradient, "sum", None, counts).wait()]

    work, (result,) = gradients.start(start, transpose, [given])
    return Work(work, result)


def reduce_scatter(tensor: Tensor, op: Op = "sum", out: Tensor | None = None) -> Tensor:
    """Return this rank's part of what `allreduce` would give: of as many equal parts, along the
    first dimension, as there are ranks.

    tensor   of the same shape and type on all ranks, in CPU memory; its first dimension is a
             multiple of size
    op, out  as for `allreduce`; `out` has the shape of a part

    All ranks call it. Raises like `allreduce`.
    """
    return reduce_scatter_async(tensor, op, out).wait()


def reduce_scatter_async(tensor: Tensor, op: Op = "sum", out: Tensor | None = None) -> Work[Tensor]:
    """Start `reduce_scatter`. `tensor` must not be changed before the work is complete."""
    return _reduce_scatter(tensor, op, out)


def _reduce_scatter(
    tensor: Tensor, op: str, out: Tensor | None, rows: list[int] | None = None
) -> Work[Tensor]:
    """rows: the size of each rank's part; None: equal parts."""
    reduction = _reduction(op)
    given = _checked("tensor", tensor)
    counts = [_part(given)] * size() if rows is None else rows
    part = (counts[rank()], *given.shape[1:])
    outs = _outs(out)
    if out is not None and (out.shape != part or out.dtype != given.dtype):
        raise _unfit(out, part, given.dtype)

    def start(own: Tensor) -> tuple[Any, list[Tensor]]:
        own = own.detach()
        target = own.new_empty(part) if out is None else out.detach()
        how = {"op": reduction, "group": group(), "async_op": True}
        if rows is None:
            return _equal_reduce_scatter(target, own, **how), [target]
        return dist.reduce_scatter(target, list(own.split(counts)), **how), [target]

    def transpose(gradient: Tensor) -> list[Tensor]:
        gathered = allgather(gradient, counts)
        return [gathered / size() if _linear("reduce_scatter", op) == "average" else gathered]

    work, (result,) = gradients.start(start, transpose, [given], outs)
    return Work(work, result)


def alltoall(
    tensor: Tensor,
    sent_rows: Sequence[int] | None = None,
    received_rows: Sequence[int] | None = None,
) -> Tensor:
    """Give each rank its part of `tensor`, and get theirs, one after the other in the order of
    ranks. Parts are along the first dimension.

    tensor         of the same type on all ranks, and of the same shape but for the first dimension,
                   in CPU memory; any element type
    sent_rows      the size of each rank's part; None: equal parts
    received_rows  the size of the part from each rank; None: found out, by an exchange that takes
                   a moment, unless sent_rows is None too

    All ranks call it, and either all or none with received_rows. Raises like `allreduce`.
    """
    return alltoall_async(tensor, sent_rows, received_rows).wait()


def alltoall_async(
    tensor: Tensor,
    sent_rows: Sequence[int] | None = None,
    received_rows: Sequence[int] | None = None,
) -> Work[Tensor]:
    """Start `alltoall`. `tensor` must not be changed before the work is complete."""
    given = _checked("tensor", tensor)
    if sent_rows is None and received_rows is None:
        _part(given)
    sent = _rows("sent_rows", sent_rows, len(given) // size())
    if sum(sent) != len(given):
        raise _invalid(f"sent_rows: are {sum(sent)} in all, but the tensor has {len(given)}")
    if received_rows is None and sent_rows is not None:
        taken = torch.empty(size(), dtype=torch.int64)
        dist.all_to_all_single(taken, torch.tensor(sent), group=group())
        received_rows = taken.tolist()
    received = _rows("received_rows", received_rows, sent[0])

    def start(own: Tensor) -> tuple[Any, list[Tensor]]:
        own = own.detach()
        target = own.new_empty(sum(received), *own.shape[1:])
        work = dist.all_to_all_single(target, own, received, sent, group=group(), async_op=True)
        return work, [target]

    def transpose(gradient: Tensor) -> list[Tensor]:
        return [alltoall(gradient, received, sent)]

    work, (result,) = gradients.start(start, transpose, [given])
    return Work(work, result)


def barrier() -> None:
    """Return on no rank before every rank has called it."""
    dist.barrier(group())


def barrier_async() -> Work[None]:
    """Start `barrier`."""
    return Work(dist.barrier(group(), async_op=True), None)


def _prepared(tensor: Tensor, out: Tensor | None) -> Tensor:
    """The tensor that the operation works on, in place: `out`, holding the values of `tensor`."""
    tensor = tensor.detach()
    if out is None:
        return tensor.clone(memory_format=torch.contiguous_format)
    if out.shape != tensor.shape or out.dtype != tensor.dtype:
        raise _unfit(out, tuple(tensor.shape), tensor.dtype)
    out = out.detach()
    if out.data_ptr() != tensor.data_ptr() or out.stride() != tensor.stride():
        out.copy_(tensor)
    return out


def _checked(name: str, value: Any) -> Tensor:
    """The argument, if it is a tensor whose memory an operation can use."""
    if not isinstance(value, Tensor):
        kind = type(value)
        raise TypeError(
            f"{name}: is of type {kind.__module__}.{kind.__qualname__}, not a torch.Tensor; make it"
            " one by torch.as_tensor"
        )
    if value.layout != torch.strided:
        raise ValueError(
            f"{name}: is a tensor of layout {value.layout}, which is not dense; give its to_dense()"
            + (", or call torch.distributed.all_reduce" if value.is_sparse else "")
        )
    if value.is_meta:
        raise ValueError(f"{name}: is on the device meta, so it has no values; give it some on cpu")
    if value.device.type != "cpu" and value.device.type not in _devices():
        raise ValueError(
            f"{name}: is on the device {value.device}, but operations are on"
            f" {' and '.join(sorted(_devices()))}; give its cpu()"
        )
    return value


def _devices() -> set[str]:
    """The types of devices whose tensors libddl takes."""
    whole = group()
    return {
        device.type for device in whole._device_types if backend_of(whole, device).name() == "ddl"
    }


def _outs(out: Any) -> list[Tensor]:
    return [] if out is None else [_checked("out", out)]


def _has_gradient(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _linear(name: str, op: str) -> str:
    """The op, if it has a gradient."""
    if op not in ("sum", "average"):
        raise NotImplementedError(f"{name} by {op} has no gradient; by sum and average it has")
    return op


def _rows(name: str, given: Sequence[int] | None, otherwise: int) -> list[int]:
    """Each rank's rows: as given, or `otherwise`."""
    return [otherwise] * size() if given is None else adapter().check_rows(name, given, size())


def _part(tensor: Tensor) -> int:
    """An equal part of the first dimension."""
    return adapter().equal_rows("tensor", tensor.shape, size())


def _reduction(op: str) -> Any:
    return getattr(dist.ReduceOp, OPS[adapter().check_op(op)])


def _unfit(out: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Exception:
    return _invalid(
        f"out: has shape {tuple(out.shape)} and type {out.dtype}, not the result's"
        f" {shape} and {dtype}"
    )


def _invalid(message: str) -> Exception:
    error: Exception = adapter().InvalidArgument(message)
    return error
