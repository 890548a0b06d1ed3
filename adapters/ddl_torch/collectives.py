# SPDX-License-Identifier: Apache-2.0
"""Operations on tensors of all ranks, with the names that all adapters of libddl share.

All operations have gradients of any order; reductions have them only for sums and averages. All
ranks must take part in a backward operation. So the tensors require grad on all ranks or on none,
and on every rank the loss must depend on the results. Asynchronous operations have gradients, too;
backward waits for the operation.
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
    from ddl_core.base.names import GradientOp, Op

Result = TypeVar("Result")

# Renamed in PyTorch 2.13.
_equal_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Work(Generic[Result]):
    """A pending operation. Do not use its tensors before it is complete. They stay alive until
    then, even if the Work is dropped."""

    def __init__(self, work: Any, result: Result) -> None:
        self._work = work
        self._result = result

    def wait(self, timeout: float | None = None) -> Result:
        """Wait until the operation is complete, and return its result. Later calls return or raise
        the same.

        timeout is in seconds; None means only the operation's own limit. Raises
        torch.distributed.DistBackendError if the operation fails, or if the timeout passes. After
        the timeout, the operation stays pending.
        """
        if self._work is None:  # an empty group
            return self._result
        if timeout is None:
            self._work.wait()
        else:
            self._work.wait(timedelta(seconds=max(timeout, 0.001)))
        return self._result

    def done(self) -> bool:
        """Return True if the operation has succeeded or failed. Does not block."""
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
    """Combine the ranks' tensors element by element. All ranks get the same bits.

    tensor   a tensor in CPU memory or on a GPU, of the same shape and type on all ranks
    op       "sum", "average", "min", "max", "product", "bit_and", "bit_or" or "bit_xor". Integers
             wrap; their average truncates
    out      the tensor for the result, of the same shape and type; may be `tensor`. None creates a
             new tensor

    All ranks call this. Sums and averages have a gradient, but not with `out`. Raises
      ddl_core.errors.InvalidArgument  if the op is unknown, or `out` has another shape or type
      ddl_core.errors.InvalidState     before init
      TypeError            if an argument is not a tensor, or its type cannot be reduced
      NotImplementedError  if the type does not support the op; in backward, if it has no gradient
      ValueError           if a tensor is not dense, or the group does not support its device
      RuntimeError         if `out` is given but a gradient is needed
      torch.distributed.DistBackendError  if calls do not match, a rank dies, or time runs out
    """
    return _allreduce(tensor, op, out, False).wait()


def allreduce_async(tensor: Tensor, op: Op = "sum", out: Tensor | None = None) -> Work[Tensor]:
    """Start `allreduce`. You may change `tensor` at once, but `out` only when it is complete."""
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
    """Perform `allreduce` on several tensors as one operation. Small tensors are sent together.

    tensors  tensors of any shapes and types, in the same order on all ranks
    out      the tensors for the results, one for each tensor; may be `tensors`

    All ranks call this. Raises the errors of `allreduce`.
    """
    return grouped_allreduce_async(tensors, op, out).wait()


def grouped_allreduce_async(
    tensors: Sequence[Tensor], op: Op = "sum", out: Sequence[Tensor] | None = None
) -> Work[list[Tensor]]:
    """Start `grouped_allreduce`."""
    for name, several in (("tensors", tensors), ("out", out)):
        if isinstance(several, Tensor):
            raise TypeError(f"{name} is one tensor; pass a list of tensors, or call allreduce")
    if out is not None and len(out) != len(tensors):
        raise _invalid(f"out has {len(out)} tensors, but there are {len(tensors)}")
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
        # Reduce all tensors that can have a gradient, which are the same on all ranks.
        which = [number for number, each in enumerate(moved) if _has_gradient(each)]
        linear = _linear("grouped_allreduce", op)
        results = iter(grouped_allreduce([moved[number] for number in which], linear))
        return [next(results) if number in which else None for number in range(len(moved))]

    work, results = gradients.start(start, transpose, given, outs)
    return Work(work, list(results))


def broadcast(tensor: Tensor, root: int = 0, out: Tensor | None = None) -> Tensor:
    """Return the root's tensor on all ranks.

    tensor   a tensor in CPU memory with the same shape and type on all ranks, of any element type;
             its values matter only on the root
    root     the rank whose values all ranks get
    out      the tensor for the result, as in `allreduce`

    All ranks call this. The gradient is the sum of all ranks' gradients on the root, and 0
    elsewhere. So if the root's tensor requires grad, all ranks' tensors must. Raises the errors of
    `allreduce`, and InvalidArgument if root is not a rank.
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
    """Concatenate the ranks' tensors along the first dimension.

    tensor   a tensor in CPU memory with the same shape and type on all ranks, of any element type
    rows     each rank's size of the first dimension, if the sizes differ

    Returns a tensor of shape (size * tensor.shape[0], ...), or (size,) for scalars. All ranks call
    this. Raises the errors of `allreduce`.
    """
    return allgather_async(tensor, rows).wait()


def allgather_async(tensor: Tensor, rows: Sequence[int] | None = None) -> Work[Tensor]:
    """Start `allgather`. Do not change `tensor` before the work is complete."""
    given = _checked("tensor", tensor)
    given = given.reshape(given.shape or (1,))
    counts = _rows("rows", rows, len(given))
    if counts[rank()] != len(given):
        raise _invalid(f"rows is {counts[rank()]} for this rank, but its tensor has {len(given)}")

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
    """Return this rank's part of the `allreduce` result. The parts are equal, along the first
    dimension.

    tensor   a tensor in CPU memory with the same shape and type on all ranks; its first dimension
             must be a multiple of the number of ranks
    op, out  as in `allreduce`; `out` has the shape of a part

    All ranks call this. Raises the errors of `allreduce`.
    """
    return reduce_scatter_async(tensor, op, out).wait()


def reduce_scatter_async(tensor: Tensor, op: Op = "sum", out: Tensor | None = None) -> Work[Tensor]:
    """Start `reduce_scatter`. Do not change `tensor` before the work is complete."""
    return _reduce_scatter(tensor, op, out)


def _reduce_scatter(
    tensor: Tensor, op: str, out: Tensor | None, rows: list[int] | None = None
) -> Work[Tensor]:
    """Start a reduce-scatter. `rows` is the size of each rank's part; None means equal parts."""
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
    """Send each rank a part of `tensor`, and concatenate the parts received, in the order of ranks.
    Parts are rows, along the first dimension.

    tensor         a tensor in CPU memory of any element type; the type, and the shape except the
                   first dimension, are the same on all ranks
    sent_rows      the number of rows for each rank; None means equal parts
    received_rows  the number of rows from each rank; if None, and sent_rows is given, the ranks
                   exchange these numbers first

    All ranks call this. received_rows must be given on all ranks or on none. Raises the errors of
    `allreduce`.
    """
    return alltoall_async(tensor, sent_rows, received_rows).wait()


def alltoall_async(
    tensor: Tensor,
    sent_rows: Sequence[int] | None = None,
    received_rows: Sequence[int] | None = None,
) -> Work[Tensor]:
    """Start `alltoall`. Do not change `tensor` before the work is complete."""
    given = _checked("tensor", tensor)
    if sent_rows is None and received_rows is None:
        _part(given)
    sent = _rows("sent_rows", sent_rows, len(given) // size())
    if sum(sent) != len(given):
        raise _invalid(f"sent_rows has the sum {sum(sent)}, but the tensor has {len(given)} rows")
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
    """Wait until all ranks have called this."""
    dist.barrier(group())


def barrier_async() -> Work[None]:
    """Start `barrier`."""
    return Work(dist.barrier(group(), async_op=True), None)


def _prepared(tensor: Tensor, out: Tensor | None) -> Tensor:
    """Copy `tensor` to `out`, or to a new tensor, and return the copy for an in-place operation."""
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
    """Return `value` if it is a tensor whose memory an operation can use, else raise."""
    if not isinstance(value, Tensor):
        kind = type(value)
        raise TypeError(
            f"{name} has type {kind.__module__}.{kind.__qualname__}; must be a torch.Tensor:"
            f" pass torch.as_tensor({name})"
        )
    if value.layout != torch.strided:
        raise ValueError(
            f"{name} has layout {value.layout}, which is not dense; pass {name}.to_dense()"
            + (", or call torch.distributed.all_reduce" if value.is_sparse else "")
        )
    if value.is_meta:
        raise ValueError(f"{name} is on the device meta, which has no values; pass a tensor on cpu")
    if value.device.type != "cpu" and value.device.type not in _devices():
        raise ValueError(
            f"{name} is on the device {value.device}; must be on"
            f" {' or '.join(sorted(_devices()))}: pass {name}.cpu()"
        )
    return value


def _devices() -> set[str]:
    """Return the device types that libddl supports in this group."""
    whole = group()
    return {
        device.type for device in whole._device_types if backend_of(whole, device).name() == "ddl"
    }


def _outs(out: Any) -> list[Tensor]:
    return [] if out is None else [_checked("out", out)]


def _has_gradient(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _linear(name: str, op: str) -> GradientOp:
    """Return the op, or raise NotImplementedError if it has no gradient."""
    linear: dict[str, GradientOp] = {"sum": "sum", "average": "average"}
    if op not in linear:
        raise NotImplementedError(f"{name} with op {op} has no gradient; use sum or average")
    return linear[op]


def _rows(name: str, given: Sequence[int] | None, otherwise: int) -> list[int]:
    """Return each rank's number of rows: the given numbers, or `otherwise` for all ranks."""
    return [otherwise] * size() if given is None else adapter().check_rows(name, given, size())


def _part(tensor: Tensor) -> int:
    """Return the number of rows in each rank's equal part of a tensor."""
    return adapter().equal_rows("tensor", tensor.shape, size())


def _reduction(op: str) -> Any:
    return getattr(dist.ReduceOp, OPS[adapter().check_op(op)])


def _unfit(out: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Exception:
    return _invalid(
        f"out has shape {tuple(out.shape)} and type {out.dtype}; must be {shape} and {dtype},"
        " like the result"
    )


def _invalid(message: str) -> Exception:
    error: Exception = adapter().InvalidArgument(message)
    return error
