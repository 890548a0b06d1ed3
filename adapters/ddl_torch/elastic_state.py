"""The state of an elastic job by name: model, optimizer, and what else has a state_dict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ddl_elastic.framework import State
from ddl_torch.elastic_tensors import pack, unpack


def read(model: nn.Module, optimizer: torch.optim.Optimizer, also: Mapping[str, Any]) -> State:
    """See ddl_elastic.framework.Framework.state."""
    return {name: pack(name, value) for name, value in _named(model, optimizer, also)}


def _named(
    model: nn.Module, optimizer: torch.optim.Optimizer, also: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    found = optimizer.state_dict()
    slots, groups = found["state"], found["param_groups"]
    for name, value in model.state_dict(keep_vars=True).items():
        is_changed_by_shares = isinstance(value, Tensor) and not isinstance(value, nn.Parameter)
        yield f"model.{name}", value.clone() if is_changed_by_shares else value
    for kind, parts in (("slot", slots.items()), ("group", enumerate(groups))):
        for number, part in parts:
            for name in (each for each in part if each != "params"):
                yield f"{kind}.{number}.{name}", part[name]
    for name, each in also.items():
        yield from ((f"also.{name}.{key}", value) for key, value in each.state_dict().items())


def write(
    state: State, model: nn.Module, optimizer: torch.optim.Optimizer, also: Mapping[str, Any]
) -> None:
    """Raises ValueError for a state that is not theirs."""
    found = optimizer.state_dict()
    slots: dict[str, dict[Any, Any]] = {
        "slot": found["state"],
        "group": dict(enumerate(found["param_groups"])),
    }
    others: dict[str, dict[str, Any]] = {"model": {}, **{f"also.{name}": {} for name in also}}
    try:
        for key, packed in state.items():
            kind, rest = key.split(".", 1)
            if kind == "model":
                others[kind][rest] = unpack(key, packed)
                continue
            number, name = rest.split(".", 1)
            if kind == "also":
                others[f"{kind}.{number}"][name] = unpack(key, packed)
            else:
                slots[kind].setdefault(int(number), {})[name] = unpack(key, packed)
        model.load_state_dict(others.pop("model"))
        optimizer.load_state_dict(found)
        for name, each in also.items():
            each.load_state_dict(others[f"also.{name}"])
    except (KeyError, RuntimeError) as error:
        raise ValueError(f"the state is not this model's: {error}") from error
