# SPDX-License-Identifier: Apache-2.0
"""Objects, parameters and an optimizer's state, from one rank to all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ddl_torch.collectives import broadcast_async
from ddl_torch.world import adapter, group, rank, size


def broadcast_object(value: Any, root: int = 0) -> Any:
    """The root's object, on all ranks. On the others `value` is ignored.

    It is pickled, so use it only among ranks that trust each other. All ranks call it. Raises like
    `broadcast`, and TypeError on all ranks if it cannot be pickled.
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
    """All ranks' objects, in the order of ranks. Pickled as for `broadcast_object`."""
    from ddl_core.adapter_objects import packed, unpacked

    values: list[Any] = [None] * size()
    dist.all_gather_object(values, packed(value, rank()), group=group())
    return [unpacked(each) for each in values]


def broadcast_parameters(parameters: torch.nn.Module | Mapping[str, Any], root: int = 0) -> None:
    """Give all ranks the root's values of a module's parameters and buffers, or of the tensors in a
    state_dict, in place.

    All ranks call it with equal names, shapes and types. What is not a tensor in a state_dict is
    not changed. Raises like `broadcast`.
    """
    state = parameters.state_dict() if isinstance(parameters, torch.nn.Module) else parameters
    _broadcast([value.detach() for value in state.values() if isinstance(value, Tensor)], root)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root: int = 0) -> None:
    """Give all ranks the root's state of an optimizer: step counts, momenta, learning rates and all
    else that is in its state_dict, as after loading a checkpoint on the root.

    All ranks call it, with optimizers of the same parameters; that of others than the root may have
    no state yet. Raises like `broadcast_object`.
    """
    tensors: list[Tensor] = []

    def outline(tensor: Tensor) -> _Outline:
        tensors.append(tensor.detach())
        return _Outline(tensor.shape, tensor.dtype, tensor.device.type)

    def empty(outline: _Outline) -> Tensor:
        tensors.append(torch.empty(outline.shape, dtype=outline.dtype, device=outline.device))
        return tensors[-1]

    state = tree_map_only(Tensor, outline, optimizer.state_dict()) if rank() == root else None
    state = broadcast_object(state, root)
    if rank() == root:
        _broadcast(tensors, root)
        return
    state = tree_map_only(_Outline, empty, state)
    _broadcast(tensors, root)
    optimizer.load_state_dict(state)


@dataclass(frozen=True)
class _Outline:
    """Of a tensor."""

    shape: torch.Size
    dtype: torch.dtype
    device: str


def _broadcast(tensors: list[Tensor], root: int) -> None:
    for work in [broadcast_async(tensor, root, out=tensor) for tensor in tensors]:
        work.wait()
