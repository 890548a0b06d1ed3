# SPDX-License-Identifier: Apache-2.0
"""Broadcasts of objects, parameters and optimizer states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ddl_core.adapter_objects import check, packed, unpacked
from ddl_horovod.torch.operations import allgather, broadcast_, broadcast_async_, synchronize
from ddl_horovod.torch.world import global_process_set
from ddl_horovod.world import ProcessSet

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Copy the root's values to the parameters of all members, in place.

    params is a state_dict, model.named_parameters(), or tensors. Raises ValueError for other types.
    """
    if isinstance(params, Mapping):
        pairs: list[Any] = sorted(params.items())
    elif isinstance(params, Iterable) and not isinstance(params, (str, Tensor)):
        pairs = [each if isinstance(each, tuple) else (None, each) for each in params]
    else:
        raise ValueError(f"params is a {type(params).__name__}; must be a dict or a list")
    tensors = [value.detach() for _, value in pairs if isinstance(value, Tensor)]
    handles = [broadcast_async_(each, root_rank, None, process_set) for each in tensors]
    for handle in handles:
        synchronize(handle)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Copy the root's optimizer state to all members. The other members' optimizers need not have a
    state yet. Gradients that are None are set to zeros. model is not used. Raises ValueError for
    torch.optim.LBFGS."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("optimizer is a torch.optim.LBFGS, whose state cannot be broadcast")
    state = broadcast_object(optimizer.state_dict(), root_rank, None, process_set)
    if process_set.members()[process_set.rank()] != root_rank:
        optimizer.load_state_dict(state)
    for parameter in (each for part in optimizer.param_groups for each in part["params"]):
        if parameter.requires_grad and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)  # some programs read it


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the root's object on all members. Objects are pickled, so the ranks must trust each
    other. Raises TypeError on all members if pickling fails."""
    own = process_set.members()[process_set.rank()] == root_rank
    data = packed(obj, root_rank) if own else b""
    length = torch.tensor([len(data)])
    broadcast_(length, root_rank, name and f"{name}.length", process_set)
    content = torch.frombuffer(bytearray(data or bytes(int(length))), dtype=torch.uint8)
    broadcast_(content, root_rank, name, process_set)
    if own:
        check(data)
        return obj
    return unpacked(content.numpy().tobytes())


def allgather_object(
    obj: Any, name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Any]:
    """Return the objects of all members. They are pickled as in `broadcast_object`."""
    data = packed(obj, process_set.members()[process_set.rank()])
    own = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    lengths = allgather(torch.tensor([len(own)]), name and f"{name}.length", process_set)
    everyone = allgather(own, name, process_set)
    return [unpacked(each.numpy().tobytes()) for each in everyone.split(lengths.tolist())]
