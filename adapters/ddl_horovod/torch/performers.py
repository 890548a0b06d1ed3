# SPDX-License-Identifier: Apache-2.0
"""Functions that perform each operation after the members have exchanged their calls."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ddl_horovod.common import parts
from ddl_horovod.executor import MemberCall, Perform
from ddl_torch.packing import start

_OPS = {
    "Average": dist.ReduceOp.AVG,
    "Sum": dist.ReduceOp.SUM,
    "Min": dist.ReduceOp.MIN,
    "Max": dist.ReduceOp.MAX,
    "Product": dist.ReduceOp.PRODUCT,
}


def allreduce(
    tensors: list[Tensor], outputs: list[Tensor], op: str, prescale: float, postscale: float
) -> Perform:
    def perform(group: Any, calls: list[MemberCall]) -> list[Tensor]:
        for tensor, output in zip(tensors, outputs, strict=True):
            moved = (tensor.detach() * prescale if prescale != 1 else tensor.detach()).contiguous()
            moved = moved.clone() if moved.data_ptr() == tensor.data_ptr() else moved
            moved = moved.to(tensor.dtype)
            if op == "Adasum":
                moved = _adasum(moved, group)
            else:
                dist.all_reduce(moved, _OPS[op], group=group)
            output.detach().copy_(moved * postscale if postscale != 1 else moved)
        return outputs

    return perform


def allreduce_packed(tensor: Tensor, residual: Tensor, op: str, wire: str) -> Perform:
    """Reduce a flat tensor of float32 in place, in this wire format."""

    def perform(group: Any, calls: list[MemberCall]) -> Tensor:
        start(group, tensor, residual, op.lower(), wire).wait()
        return tensor

    return perform


def allgather(tensors: list[Tensor]) -> Perform:
    """Concatenate the members' tensors, whose numbers of rows may differ. A joined member has no
    rows."""

    def perform(group: Any, calls: list[MemberCall]) -> list[Tensor]:
        results = []
        for number, tensor in enumerate(tensors):
            rows = [call.shapes[number][0] if call.shapes else 0 for call in calls]
            result = tensor.new_empty((sum(rows), *tensor.shape[1:]))
            dist.all_gather(list(result.split(rows)), tensor.detach().contiguous(), group=group)
            results.append(result)
        return results

    return perform


def broadcast(tensor: Tensor, output: Tensor, root: int) -> Perform:
    """Broadcast the tensor of the global rank `root`."""

    def perform(group: Any, calls: list[MemberCall]) -> Tensor:
        moved = tensor.detach().clone(memory_format=torch.contiguous_format)
        dist.broadcast(moved, root, group=group)
        output.detach().copy_(moved)
        return output

    return perform


def alltoall(tensor: Tensor, rank: int) -> Perform:
    def perform(group: Any, calls: list[MemberCall]) -> tuple[Tensor, Tensor]:
        received = [call.splits[rank] for call in calls]
        result = tensor.new_empty((sum(received), *tensor.shape[1:]))
        own = tensor.detach().contiguous()
        dist.all_to_all_single(result, own, received, calls[rank].splits, group=group)
        return result, torch.tensor(received, dtype=torch.int32)

    return perform


def reducescatter(tensors: list[Tensor], op: str, prescale: float, postscale: float) -> Perform:
    """Reduce and scatter the rows. The first members get one row more if the rows cannot be divided
    equally."""

    def perform(group: Any, calls: list[MemberCall]) -> list[Tensor]:
        results = []
        for tensor in tensors:
            moved = tensor.detach() * prescale if prescale != 1 else tensor.detach()
            rows = parts(len(tensor), group.size())
            result = tensor.new_empty((rows[group.rank()], *tensor.shape[1:]))
            sent = list(moved.to(tensor.dtype).contiguous().split(rows))
            dist.reduce_scatter(result, sent, _OPS[op], group=group)
            results.append((result * postscale).to(tensor.dtype) if postscale != 1 else result)
        return results

    return perform


def barrier(group: Any, calls: list[MemberCall]) -> None:
    dist.barrier(group)


def _adasum(tensor: Tensor, group: Any) -> Tensor:
    """Combine gradients in pairs: orthogonal gradients are added, parallel ones are averaged. The
    number of members must be a power of two."""
    everyone = [torch.empty_like(tensor) for _ in range(group.size())]
    dist.all_gather(everyone, tensor, group=group)
    vectors = [each.double() for each in everyone]
    while len(vectors) > 1:
        vectors = [_adasum_pair(a, b) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    return vectors[0].to(tensor.dtype)


def _adasum_pair(a: Tensor, b: Tensor) -> Tensor:
    product, norm_a, norm_b = (a * b).sum(), (a * a).sum(), (b * b).sum()
    share_a = 1 - product / (2 * norm_a) if norm_a > 0 else 1.0
    share_b = 1 - product / (2 * norm_b) if norm_b > 0 else 1.0
    return share_a * a + share_b * b
