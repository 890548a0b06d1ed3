"""Operations on tensors of all ranks, under the names that all adapters of libddl share."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ddl_torch.world import group

Result = TypeVar("Result")

_OPS = {"sum": "SUM", "average": "AVG", "min": "MIN", "max": "MAX", "product": "PRODUCT"}


class Work(Generic[Result]):
    """An operation under way. Its tensors must not be touched before it is complete; they are kept
    alive until then, also when the Work is dropped."""

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
        if timeout is None:
            self._work.wait()
        else:
            self._work.wait(timedelta(seconds=max(timeout, 0.001)))
        return self._result

    def done(self) -> bool:
        """Whether the operation is complete, with whatever result. Does not block."""
        done: bool = self._work.is_completed()
        return done

    def future(self) -> torch.futures.Future[list[Tensor]]:
        """A future of the list of the operation's output tensors, for callbacks."""
        future: torch.futures.Future[list[Tensor]] = self._work.get_future()
        return future


def allreduce(tensor: Tensor, op: str = "sum", out: Tensor | None = None) -> Tensor:
    """Combine the ranks' tensors, element by element; all ranks get the same bits.

    tensor   of the same shape on all ranks, and of type float16, bfloat16, float32, float64, int8,
             uint8, int32 or int64, in CPU memory
    op       "sum", "average", "min", "max" or "product". Integers wrap; their average truncates
    out      what gets the result, of the same shape and type; may be `tensor` itself. None: a new
             tensor

    All ranks call it. Raises ddl_core.errors.InvalidArgument for an unknown op or an unfit `out`,
    TypeError for another element type, ValueError for a tensor that is not dense or not in CPU
    memory, InvalidState before init, and torch.distributed.DistBackendError when ranks call
    different things, a rank dies, or the time passes.
    """
    target, reduction = _prepared(tensor, out), _reduction(op)
    dist.all_reduce(target, reduction, group=group())
    return target


def allreduce_async(tensor: Tensor, op: str = "sum", out: Tensor | None = None) -> Work[Tensor]:
    """Start `allreduce`. `tensor` may be changed at once, `out` not before the work is complete."""
    target, reduction = _prepared(tensor, out), _reduction(op)
    return Work(dist.all_reduce(target, reduction, group=group(), async_op=True), target)


def broadcast(tensor: Tensor, root: int = 0, out: Tensor | None = None) -> Tensor:
    """The root's tensor, on all ranks.

    tensor   of the same shape and type on all ranks, in CPU memory; any element type. On other
             ranks than the root its values do not matter
    root     the rank whose values all get
    out      as for `allreduce`

    All ranks call it. Raises like `allreduce`; ValueError for a root that is no rank.
    """
    target = _prepared(tensor, out)
    dist.broadcast(target, _root(root), group=group())
    return target


def broadcast_async(tensor: Tensor, root: int = 0, out: Tensor | None = None) -> Work[Tensor]:
    """Start `broadcast`."""
    target = _prepared(tensor, out)
    return Work(dist.broadcast(target, _root(root), group=group(), async_op=True), target)


def allgather(tensor: Tensor) -> Tensor:
    """The ranks' tensors one after the other, along the first dimension.

    tensor   of the same shape and type on all ranks, in CPU memory; any element type

    Returns a tensor of shape (size * tensor.shape[0], ...); of shape (size,) for a scalar. All
    ranks call it. Raises like `allreduce`.
    """
    target, rows = _gathered(tensor)
    dist.all_gather(rows, _row(tensor), group=group())
    return target


def allgather_async(tensor: Tensor) -> Work[Tensor]:
    """Start `allgather`. `tensor` must not be changed before the work is complete."""
    target, rows = _gathered(tensor)
    return Work(dist.all_gather(rows, _row(tensor), group=group(), async_op=True), target)


def barrier() -> None:
    """Return on no rank before every rank has called it."""
    dist.barrier(group())


def barrier_async() -> Work[None]:
    """Start `barrier`."""
    return Work(dist.barrier(group(), async_op=True), None)


def broadcast_parameters(parameters: torch.nn.Module | Mapping[str, Any], root: int = 0) -> None:
    """Give all ranks the root's values of a module's parameters and buffers, or of the tensors in a
    state_dict, in place.

    All ranks call it with equal names, shapes and types. What is not a tensor in a state_dict stays
    as it is. Raises like `broadcast`.
    """
    state = parameters.state_dict() if isinstance(parameters, torch.nn.Module) else parameters
    tensors = [value.detach() for value in state.values() if isinstance(value, Tensor)]
    for work in [broadcast_async(tensor, root, out=tensor) for tensor in tensors]:
        work.wait()


def _prepared(tensor: Tensor, out: Tensor | None) -> Tensor:
    """The tensor that the operation works on, in place: `out`, holding the values of `tensor`."""
    tensor = tensor.detach()
    if out is None:
        return tensor.clone(memory_format=torch.contiguous_format)
    if out.shape != tensor.shape or out.dtype != tensor.dtype:
        raise _invalid(
            f"out: has shape {tuple(out.shape)} and type {out.dtype}, not the tensor's"
            f" {tuple(tensor.shape)} and {tensor.dtype}"
        )
    out = out.detach()
    if out.data_ptr() != tensor.data_ptr() or out.stride() != tensor.stride():
        out.copy_(tensor)
    return out


def _gathered(tensor: Tensor) -> tuple[Tensor, list[Tensor]]:
    """What gets all ranks' tensors, and each rank's part of it."""
    first, *others = tensor.shape or (1,)
    rows = tensor.new_empty(group().size(), first, *others)
    return rows.flatten(0, 1), list(rows.unbind())


def _row(tensor: Tensor) -> Tensor:
    return tensor.detach().reshape(tensor.shape or (1,))


def _reduction(op: str) -> Any:
    if op not in _OPS:
        raise _invalid(f"op: {op!r} is none of {', '.join(_OPS)}")
    return getattr(dist.ReduceOp, _OPS[op])


def _root(root: int) -> int:
    if not 0 <= root < group().size():
        raise _invalid(f"root: {root} is not a rank; there are {group().size()}")
    return root


def _invalid(message: str) -> Exception:
    from ddl_core.errors import InvalidArgument

    return InvalidArgument(message)
