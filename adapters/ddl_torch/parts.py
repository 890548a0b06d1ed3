# SPDX-License-Identifier: Apache-2.0
"""Sums over logical workers, whose bits do not depend on the number of ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from ddl_torch._autoload import cpu_backend, is_ddl
from ddl_torch.world import adapter

if TYPE_CHECKING:
    from ddl_core.base.names import Op

_HALVES = (torch.float16, torch.bfloat16)


def allreduce_parts(operands: Tensor, workers: int, op: Op = "sum", *, group: Any = None) -> Tensor:
    """Sum the tensors of logical workers, with the same bits on any number of ranks.

    operands  the tensors of this rank's workers, in CPU memory, stacked along the first dimension.
              Rank r of p has the workers from r * workers // p up to the next rank's first
    workers   the number of workers of all ranks
    op        "sum"; or "average", the sum divided by the number of workers
    group     a process group of ddl; None: the default group

    All ranks of the group call this, with equal shapes apart from the first dimension. The group
    needs no option, and its option may be "ranks:V". Half types are added in float32, and the
    result is rounded once. There is no gradient. Raises
      ddl_core.errors.InvalidArgument  if there is not one operand for each of this rank's workers,
                           or `workers` or `op` is invalid
      ddl_core.errors.InvalidState     before torch.distributed is initialized
      NotImplementedError  for another op, for fp8 and bool, and if a gradient is needed
      TypeError            if `operands` is not a tensor
      ValueError           if it is not in CPU memory, or the group is not one of ddl
      torch.distributed.DistBackendError  if calls do not match, a rank dies, or time runs out
    """
    return _outside_graphs(_reduce)(operands, workers, op, group, scatters=False)


def reduce_scatter_parts(
    operands: Tensor, workers: int, op: Op = "sum", *, group: Any = None
) -> Tensor:
    """Return this rank's rows of the result of `allreduce_parts`. All ranks get the same number of
    rows.

    operands  as in `allreduce_parts`; each worker's tensor has a number of rows, along its first
              dimension, that is a multiple of the number of ranks

    All ranks call this. Raises the errors of `allreduce_parts`.
    """
    return _outside_graphs(_reduce)(operands, workers, op, group, scatters=True)


def _outside_graphs(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a form of the function at which torch.compile breaks its graph. This does not import
    torch.compile's modules, which would take seconds."""
    return torch.compiler.disable(function) if "torch._dynamo" in sys.modules else function


def _reduce(operands: Tensor, workers: int, op: Op, group: Any, scatters: bool) -> Tensor:
    from ddl_core.calls import dtypes
    from ddl_core.calls.arguments import op_value
    from ddl_core.calls.order import add_at, contiguous

    name = "reduce_scatter_parts" if scatters else "allreduce_parts"
    backend = ddl_backend(group)
    rank, size = backend.rank(), backend.size()
    order = contiguous(workers, size)
    number = op_value(op)
    given = _checked(name, operands)
    shape = given.shape[1:]
    if scatters:
        shape = (adapter().equal_rows("an operand", shape, size), *shape[1:])
    result = given.new_empty(shape)
    wide = given.to(torch.float32) if given.dtype in _HALVES else given
    dtype = dtypes.from_name(str(wide.dtype).removeprefix("torch."), "operands")

    def add(left: Tensor, right: Tensor) -> Tensor:
        total = torch.empty_like(left)
        add_at(total.data_ptr(), left.data_ptr(), right.data_ptr(), total.numel(), dtype)
        return total

    parts = order.fold(rank, wide.unbind(), add)
    if isinstance(backend, dist.ProcessGroup):  # the fallback in Python
        backend.reduce_parts(parts, result, order, op, scatters).wait()
    else:
        backend.reduce_parts(parts, result, adapter().address(order), number, scatters)
    return result


def ddl_backend(group: Any) -> Any:
    """Return the backend of a group, or of the default group for None. Raises InvalidState before
    torch.distributed is initialized, and ValueError if it is not a group of ddl."""
    if not dist.is_initialized():
        raise adapter().not_joined("ddl_torch")
    group = dist.group.WORLD if group is None else group
    if not is_ddl(group):
        raise ValueError(
            f'group is {group!r}; must be a process group with the backend "ddl" for CPU tensors'
            " that this rank is a member of"
        )
    return cpu_backend(group)


def _checked(name: str, operands: Any) -> Tensor:
    """Return the operands as a contiguous tensor without a gradient."""
    if not isinstance(operands, Tensor):
        raise TypeError(
            f"operands has type {type(operands).__name__}; must be a tensor: pass torch.stack() of"
            " the tensors of this rank's workers"
        )
    if operands.layout != torch.strided or operands.device.type != "cpu":
        raise ValueError(
            f"operands has layout {operands.layout} on the device {operands.device}; must be"
            " dense and on the CPU: pass operands.to_dense().cpu()"
        )
    if operands.dim() == 0:
        raise adapter().InvalidArgument(
            "operands has no dimension: pass torch.stack() of the tensors of this rank's workers"
        )
    if operands.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError(f"{name} has no gradient; pass operands.detach()")
    return operands.detach().resolve_conj().resolve_neg().contiguous()
