# SPDX-License-Identifier: Apache-2.0
"""The state of an elastic job by name: model, optimizer, and what else has a state_dict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ddl_elastic.frameworks.protocol import State
from ddl_torch.elastic.tensors import pack, unpack


def read(model: nn.Module, optimizer: torch.optim.Optimizer, also: Mapping[str, Any]) -> State:
    """See ddl_elastic.frameworks.protocol.Framework.state."""
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


def check_schedule(optimizer: torch.optim.Optimizer, also: Iterable[Any]) -> None:
    """Raises ValueError if a learning-rate schedule drives the optimizer, and none is in `also`:
    a process that joins would begin with a new one. A schedule marks the method `step`."""
    if not hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        return
    if not any(_has_schedule(each, optimizer) for each in also):
        raise ValueError(
            "a learning-rate schedule drives the optimizer: give it as"
            ' also={"schedule": schedule}; nothing in `also` is one of this optimizer'
        )


def _has_schedule(found: Any, optimizer: torch.optim.Optimizer, depth: int = 2) -> bool:
    """Whether it is a schedule of the optimizer, or an object that has one."""
    if found is optimizer or depth < 0:
        return False
    if getattr(found, "optimizer", None) is optimizer:
        return True
    held = found if isinstance(found, dict | list | tuple) else getattr(found, "__dict__", {})
    parts = held.values() if isinstance(held, dict) else held
    return any(_has_schedule(each, optimizer, depth - 1) for each in parts)


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
