"""Objects, parameters and an optimizer's state, from one rank to all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ddl_torch.collectives import broadcast_async
from ddl_torch.world import adapter, group, rank, size


def broadcast_object(value: Any, root: int = 0) -> Any:
    """The root's object, on all ranks. On the others `value` is ignored.

    It is pickled, so use it only among ranks that trust each other. All ranks call it. Raises like
    `broadcast`, and what pickling raises.
    """
    adapter().check_rank("root", root, size())
    values = [value if rank() == root else None]
    dist.broadcast_object_list(values, root, group=group())
    return value if rank() == root else values[0]


def allgather_object(value: Any) -> list[Any]:
    """All ranks' objects, in the order of ranks. Pickled as for `broadcast_object`."""
    values: list[Any] = [None] * size()
    dist.all_gather_object(values, value, group=group())
    return values


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
    state = optimizer.state_dict() if rank() == root else None
    outline = broadcast_object(_map_tensors(state, lambda tensor: _outline(tensor, tensors)), root)
    if rank() != root:
        state = _map_outlines(outline, tensors)
    _broadcast(tensors, root)
    if rank() != root:
        optimizer.load_state_dict(state)  # type: ignore[arg-type]


class _Outline(NamedTuple):
    shape: torch.Size
    dtype: torch.dtype


def _outline(tensor: Tensor, seen: list[Tensor]) -> _Outline:
    seen.append(tensor.detach())
    return _Outline(tensor.shape, tensor.dtype)


def _map_tensors(value: Any, function: Callable[[Tensor], Any]) -> Any:
    """A state_dict with `function` applied to its tensors."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: _map_tensors(each, function) for key, each in value.items()}
    if isinstance(value, list):
        return [_map_tensors(each, function) for each in value]
    return value


def _map_outlines(value: Any, made: list[Tensor]) -> Any:
    """The reverse: new tensors, in the order in which they were outlined."""
    if isinstance(value, _Outline):
        made.append(torch.empty(value.shape, dtype=value.dtype))
        return made[-1]
    if isinstance(value, dict):
        return {key: _map_outlines(each, made) for key, each in value.items()}
    if isinstance(value, list):
        return [_map_outlines(each, made) for each in value]
    return value


def _broadcast(tensors: list[Tensor], root: int) -> None:
    for work in [broadcast_async(tensor, root, out=tensor) for tensor in tensors]:
        work.wait()
