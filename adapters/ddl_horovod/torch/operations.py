# SPDX-License-Identifier: Apache-2.0
"""Horovod's operations over all ranks or a process set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import count
from typing import Any

import torch
from torch import Tensor

from ddl_horovod import common
from ddl_horovod.common import Adasum, Average, Reduction, Sum
from ddl_horovod.executor import JOIN, MemberCall
from ddl_horovod.torch import performers
from ddl_horovod.torch.compression import Compression
from ddl_horovod.torch.world import global_process_set
from ddl_horovod.world import ProcessSet

__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "sparse_allreduce_async",
    "synchronize",
]

_works: dict[int, tuple[Future[Any], Callable[[Any], Any]]] = {}  # by handle
_handles = count(1)


def poll(handle: int) -> bool:
    """Return True if the operation has completed, so that `synchronize` does not wait."""
    return _work(handle)[0].done()


def synchronize(handle: int) -> Any:
    """Wait for an operation, and return its result. The handle is invalid afterwards."""
    future, finish = _work(handle)
    try:
        return finish(future.result())
    finally:
        del _works[handle]


def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start `allreduce`; the result goes to a new tensor."""
    how = _how(average, op, prescale_factor, postscale_factor, process_set)
    return _allreduce([tensor], [torch.empty_like(tensor)], name, how, process_set, _first)


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start `allreduce_`."""
    how = _how(average, op, prescale_factor, postscale_factor, process_set)
    return _allreduce([tensor], [tensor], name, how, process_set, _first)


def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Perform `allreduce` in place."""
    scales = prescale_factor, postscale_factor
    return synchronize(allreduce_async_(tensor, average, name, op, *scales, process_set))


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Combine the members' tensors, by default to their average. The operation is differentiable:
    its gradient combines the members' gradients in the same way."""
    how = _how(average, op, prescale_factor, postscale_factor, process_set)
    sent, context = compression.compress(tensor)
    return compression.decompress(_Allreduce.apply(name, how, process_set, sent)[0], context)


def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start `grouped_allreduce`."""
    how = _how(average, op, prescale_factor, postscale_factor, process_set)
    outputs = [torch.empty_like(tensor) for tensor in tensors]
    return _allreduce(list(tensors), outputs, name, how, process_set, list)


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start `grouped_allreduce_`."""
    how = _how(average, op, prescale_factor, postscale_factor, process_set)
    return _allreduce(list(tensors), list(tensors), name, how, process_set, list)


def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Perform `grouped_allreduce` in place."""
    scales = prescale_factor, postscale_factor
    return synchronize(grouped_allreduce_async_(tensors, average, name, op, *scales, process_set))


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Reduction | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Perform `allreduce` on several tensors as one operation."""
    how = _how(average, op, prescale_factor, postscale_factor, process_set)
    sent, contexts = zip(*map(compression.compress, tensors), strict=True)
    results = _Allreduce.apply(name, how, process_set, *sent)
    return [compression.decompress(*each) for each in zip(results, contexts, strict=True)]


def packed_allreduce_async_(
    tensor: Tensor, residual: Tensor, wire: str, name: str, op: Reduction, process_set: ProcessSet
) -> int:
    """Start to combine a flat tensor of float32 in place, in this wire format."""
    executor = process_set.executor()
    call = _call("allreduce_packed", executor.name(name), [tensor], [op.name, wire])
    perform = performers.allreduce_packed(tensor, residual, op.name, wire)
    return _handle(executor.submit(call, perform), lambda result: result)


def sparse_allreduce_async(
    tensor: Tensor,
    name: str,
    op: Reduction = Average,
    process_set: ProcessSet = global_process_set,
) -> Callable[[], Tensor]:
    """Start to combine sparse tensors by Average or Sum. Return a function that waits for the
    result and returns it. Raises ValueError for another op."""
    if op not in (Average, Sum):
        raise ValueError(f"op is {op.name}; must be Average or Sum for sparse tensors")
    own = tensor.coalesce()
    divisor = process_set.size() if op == Average else 1
    indices = allgather_async(own.indices().t().contiguous(), f"{name}.indices", process_set)
    values = allgather_async(own.values(), f"{name}.values", process_set)

    def finish() -> Tensor:
        where, what = synchronize(indices), synchronize(values)
        return torch.sparse_coo_tensor(where.t(), what / divisor, tensor.shape).coalesce()

    return finish


def allgather_async(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start `allgather`."""
    return _allgather([tensor], name, process_set, _first)


def allgather(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Concatenate the members' tensors along the first dimension, whose sizes may differ. The
    gradient is this member's rows of the members' averaged gradients."""
    return _Allgather.apply(name, process_set, tensor)[0]


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """Start `grouped_allgather`."""
    return _allgather(list(tensors), name, process_set, list)


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Tensor]:
    """Perform `allgather` on several tensors as one operation."""
    return list(_Allgather.apply(name, process_set, *tensors))


def broadcast_async(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start `broadcast`."""
    return _broadcast(tensor, torch.empty_like(tensor), root_rank, name, process_set)


def broadcast_async_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start `broadcast_`."""
    return _broadcast(tensor, tensor, root_rank, name, process_set)


def broadcast_(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Perform `broadcast` in place."""
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))


def broadcast(
    tensor: Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Return the tensor of the global rank root_rank. The gradient is the members' averaged
    gradient on the root, and 0 elsewhere."""
    return _Broadcast.apply(name, root_rank, process_set, tensor)


def alltoall_async(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Start `alltoall`."""
    return _alltoall(tensor, splits, name, process_set, _first if splits is None else tuple)


def alltoall(
    tensor: Tensor,
    splits: Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send each member some rows of the tensor, and concatenate the rows received.

    splits is the number of rows for each member; None divides the rows equally. If splits is given,
    also return the number of rows received from each member. The operation is differentiable.
    """
    result, received = _Alltoall.apply(tensor, splits, name, process_set)
    return result if splits is None else (result, received)


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: Reduction = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start `reducescatter`."""
    how = op, prescale_factor, postscale_factor
    return _reducescatter([tensor], name, how, process_set, _first)


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Reduction = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Return this member's rows of the `allreduce` result. op must be Average or Sum. If the rows
    cannot be divided equally, the first members get one more. The operation is differentiable."""
    how = op, prescale_factor, postscale_factor
    sent, context = compression.compress(tensor)
    return compression.decompress(_Reducescatter.apply(name, how, process_set, sent)[0], context)


def grouped_reducescatter_async(
    tensors: Sequence[Tensor],
    name: str | None = None,
    op: Reduction = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Start `grouped_reducescatter`."""
    how = op, prescale_factor, postscale_factor
    return _reducescatter(list(tensors), name, how, process_set, list)


def grouped_reducescatter(
    tensors: Sequence[Tensor],
    name: str | None = None,
    compression: Any = Compression.none,
    op: Reduction = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Perform `reducescatter` on several tensors as one operation."""
    how = op, prescale_factor, postscale_factor
    sent, contexts = zip(*map(compression.compress, tensors), strict=True)
    results = _Reducescatter.apply(name, how, process_set, *sent)
    return [compression.decompress(*each) for each in zip(results, contexts, strict=True)]


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until all members have called this."""
    executor = process_set.executor()
    call = _call("barrier", executor.name(None), [], [])
    executor.submit(call, performers.barrier).result()


def exchange_async(
    numbers: list[int], name: str, process_set: ProcessSet = global_process_set
) -> Callable[[], dict[int, list[int]]]:
    """Start to exchange numbers. Return a function that waits, and returns the numbers of each rank
    that has not joined."""
    executor = process_set.executor()

    def perform(group: Any, calls: list[MemberCall]) -> dict[int, list[int]]:
        performers.barrier(group, calls)
        pairs = zip(process_set.members(), calls, strict=True)
        return {rank: call.splits for rank, call in pairs if call.kind != JOIN}

    return executor.submit(
        _call("barrier", executor.name(name), [], [], False, numbers), perform
    ).result


def join(device: int = -1) -> int:
    """Take part with zeros in the other ranks' operations until all ranks have joined. Return the
    rank that joined last. The others may call allreduce (Sum, Average, Adasum), allgather (to which
    this rank adds no rows) and barrier. device is ignored."""
    executor = global_process_set.executor()
    last: int = executor.submit(MemberCall(JOIN, executor.name(None)), performers.barrier).result()
    return last


# ---- starting ----

How = tuple[Reduction, float, float]  # the reduction, prescale_factor, postscale_factor


def _how(
    average: bool | None,
    op: Reduction | None,
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
) -> How:
    chosen = common.reduction(average, op)
    if chosen == Adasum and not common.check_num_rank_power_of_2(process_set.size()):
        raise ValueError(
            f"op is Adasum, but {process_set.size()} members call it; must be a power of two"
        )
    return chosen, float(prescale), float(postscale)


def _allreduce(
    tensors: list[Tensor],
    outputs: list[Tensor],
    name: str | None,
    how: How,
    process_set: ProcessSet,
    finish: Callable[[Any], Any],
) -> int:
    executor = process_set.executor()
    equal = [how[0].name, *how[1:]]
    call = _call("allreduce", executor.name(name), tensors, equal)
    perform = performers.allreduce(tensors, outputs, how[0].name, *how[1:])
    return _handle(executor.submit(call, perform), finish)


def _allgather(
    tensors: list[Tensor], name: str | None, process_set: ProcessSet, finish: Callable[[Any], Any]
) -> int:
    executor = process_set.executor()
    rows = [tensor if tensor.shape else tensor.reshape(1) for tensor in tensors]
    call = _call("allgather", executor.name(name), rows, [], True)
    return _handle(executor.submit(call, performers.allgather(rows)), finish)


def _broadcast(
    tensor: Tensor, output: Tensor, root: int, name: str | None, process_set: ProcessSet
) -> int:
    executor = process_set.executor()
    if root not in process_set.members():
        raise ValueError(f"root_rank is {root}; must be one of the members {process_set.members()}")
    call = _call("broadcast", executor.name(name), [tensor], [root])
    return _handle(executor.submit(call, performers.broadcast(tensor, output, root)), _same)


def _alltoall(
    tensor: Tensor,
    splits: Any,
    name: str | None,
    process_set: ProcessSet,
    finish: Callable[[Any], Any],
) -> int:
    executor, size = process_set.executor(), process_set.size()
    count = len(tensor) if tensor.shape else 0
    if splits is None and count % size:
        raise ValueError(f"tensor: {count} rows cannot be divided equally among {size} members")
    rows = [count // size] * size if splits is None else torch.as_tensor(splits).tolist()
    if any(not isinstance(each, int) for each in rows):
        raise ValueError(f"splits is {rows}; its elements must be integers")
    if len(rows) != size or min(rows) < 0 or sum(rows) > count:
        raise ValueError(f"splits: {rows} do not divide {count} rows among {size} members")
    sent = tensor[: sum(rows)]
    call = _call("alltoall", executor.name(name), [sent], [], True, rows)
    return _handle(executor.submit(call, performers.alltoall(sent, process_set.rank())), finish)


def _reducescatter(
    tensors: list[Tensor],
    name: str | None,
    how: How,
    process_set: ProcessSet,
    finish: Callable[[Any], Any],
) -> int:
    executor = process_set.executor()
    if how[0] not in (Average, Sum):
        raise common.HorovodInternalError(f"op is {how[0].name}; must be Average or Sum")
    if any(not tensor.shape for tensor in tensors):
        raise ValueError("tensor is a scalar; must have at least one dimension")
    call = _call("reducescatter", executor.name(name), tensors, [how[0].name, *how[1:]])
    perform = performers.reducescatter(tensors, how[0].name, *how[1:])
    return _handle(executor.submit(call, perform), finish)


def _call(
    kind: str,
    name: str,
    tensors: list[Tensor],
    equal: list[Any],
    ragged: bool = False,
    splits: Sequence[int] = (),
) -> MemberCall:
    dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors]
    shapes = [list(tensor.shape) for tensor in tensors]
    return MemberCall(kind, name, dtypes, shapes, equal, ragged, list(splits), graph=bool(name))


def _handle(future: Future[Any], finish: Callable[[Any], Any]) -> int:
    handle = next(_handles)
    _works[handle] = future, finish
    return handle


def _work(handle: int) -> tuple[Future[Any], Callable[[Any], Any]]:
    if handle not in _works:
        raise ValueError(f"handle: {handle!r} was not created, or has been synchronized already")
    return _works[handle]


def _first(results: Sequence[Any]) -> Any:
    return results[0]


def _same(result: Any) -> Any:
    return result


# ---- gradients ----


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, name: str | None, how: How, process_set: ProcessSet, *tensors: Tensor
    ) -> Any:
        ctx.how, ctx.process_set = how, process_set
        outputs = [torch.empty_like(tensor) for tensor in tensors]
        return tuple(synchronize(_allreduce(list(tensors), outputs, name, how, process_set, list)))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        moved = _Allreduce.apply(None, ctx.how, ctx.process_set, *gradients)
        return None, None, None, *moved


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, *tensors: Tensor) -> Any:
        ctx.process_set = process_set
        ctx.shapes = [tensor.shape for tensor in tensors]
        return tuple(synchronize(_allgather(list(tensors), name, process_set, list)))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        own = [torch.tensor([shape[0] if shape else 1]) for shape in ctx.shapes]
        rows = grouped_allgather(own, process_set=ctx.process_set)
        results = grouped_allreduce(gradients, process_set=ctx.process_set)
        parts = []
        for result, counts, shape in zip(results, rows, ctx.shapes, strict=True):
            part = result.split(counts.tolist())[ctx.process_set.rank()]
            parts.append(part.reshape(shape))
        return None, None, *parts


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, name: str | None, root: int, process_set: ProcessSet, tensor: Tensor
    ) -> Any:
        ctx.root, ctx.process_set = root, process_set
        output = torch.empty_like(tensor)
        return synchronize(_broadcast(tensor, output, root, name, process_set))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        total = allreduce(gradient, op=Average, process_set=ctx.process_set)
        own = ctx.process_set.members()[ctx.process_set.rank()] == ctx.root
        return None, None, None, total if own else total * 0


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, splits: Any, name: str | None, process_set: ProcessSet
    ) -> Any:
        handle = _alltoall(tensor, splits, name, process_set, tuple)
        result, received = synchronize(handle)
        ctx.process_set, ctx.received, ctx.rows = process_set, received, len(tensor)
        ctx.mark_non_differentiable(received)
        return result, received

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> Any:
        back, _ = alltoall(gradient, ctx.received, process_set=ctx.process_set)
        unsent = back.new_zeros((ctx.rows - len(back), *back.shape[1:]))
        return torch.cat([back, unsent]), None, None, None


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, name: str | None, how: How, process_set: ProcessSet, *tensors: Tensor
    ) -> Any:
        ctx.how, ctx.process_set = how, process_set
        return tuple(synchronize(_reducescatter(list(tensors), name, how, process_set, list)))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        op, prescale, postscale = ctx.how
        factor = prescale * postscale * (ctx.process_set.size() if op == Sum else 1)
        gathered = grouped_allgather([each * factor for each in gradients], None, ctx.process_set)
        return None, None, None, *gathered
