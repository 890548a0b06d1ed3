# SPDX-License-Identifier: Apache-2.0
"""Broadcasts of objects, parameters and optimizer states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ddl_torch.collectives import broadcast_async
from ddl_torch.optimizer import RESIDUALS
from ddl_torch.world import adapter, group, rank, size


def broadcast_object(value: Any, root: int = 0) -> Any:
    """Return the root's object on all ranks. On other ranks `value` is ignored.

    Objects are pickled, so the ranks must trust each other. All ranks call this. Raises the errors
    of `broadcast`, and TypeError on all ranks if pickling fails.
    """
    from ddl_core.adapter_objects import check, packed, unpacked

    adapter().check_rank("root", root, size())
    values: list[Any] = [packed(value, root) if rank() == root else None]
    dist.broadcast_object_list(values, root, group=group())
    if rank() == root:
        check(values[0])
        return value
    return unpacked(values[0])


def allgather_object(value: Any) -> list[Any]:
    """Return all ranks' objects in the order of ranks. Pickled as in `broadcast_object`."""
    from ddl_core.adapter_objects import packed, unpacked

    values: list[Any] = [None] * size()
    dist.all_gather_object(values, packed(value, rank()), group=group())
    return [unpacked(each) for each in values]


def broadcast_parameters(parameters: torch.nn.Module | Mapping[str, Any], root: int = 0) -> None:
    """Copy the root's values of a module's parameters and buffers, or of a state_dict's tensors, to
    all ranks, in place.

    All ranks call this with the same names, shapes and types. Entries of a state_dict that are not
    tensors are not changed. Raises the errors of `broadcast`.
    """
    state = parameters.state_dict() if isinstance(parameters, torch.nn.Module) else parameters
    _broadcast([value.detach() for value in state.values() if isinstance(value, Tensor)], root)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root: int = 0) -> None:
    """Copy the root's optimizer state_dict (step counts, momenta, learning rates, ...) to all
    ranks, for example after the root has loaded a checkpoint.

    All ranks call this with optimizers of the same parameters. The other ranks' optimizers need not
    have a state yet. Raises the errors of `broadcast_object`.
    """
    tensors: list[Tensor] = []

    def outline(tensor: Tensor) -> _Outline:
        tensors.append(tensor.detach())
        return _Outline(tensor.shape, tensor.dtype, tensor.device.type)

    def empty(outline: _Outline) -> Tensor:
        tensors.append(torch.empty(outline.shape, dtype=outline.dtype, device=outline.device))
        return tensors[-1]

    own = optimizer.state_dict() if rank() == root else {}
    own.pop(RESIDUALS, None)  # they are of one rank only
    state = tree_map_only(Tensor, outline, own) if rank() == root else None
    state = broadcast_object(state, root)
    if rank() == root:
        _broadcast(tensors, root)
        return
    state = tree_map_only(_Outline, empty, state)
    _broadcast(tensors, root)
    optimizer.load_state_dict(state)


@dataclass(frozen=True)
class _Outline:
    """A tensor's shape, type and device, without its values."""

    shape: torch.Size
    dtype: torch.dtype
    device: str


def _broadcast(tensors: list[Tensor], root: int) -> None:
    for work in [broadcast_async(tensor, root, out=tensor) for tensor in tensors]:
        work.wait()
