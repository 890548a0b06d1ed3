# SPDX-License-Identifier: Apache-2.0
"""The state of an elastic job by name: the model, the optimizer, and other objects with a state.

model.NAME         a parameter or a buffer in the model's state_dict
buffer.NAME        a buffer with persistent=False, which the state_dict lacks
slot.NUMBER.NAME   the optimizer's state of a parameter
group.NUMBER.NAME  a setting of one of the optimizer's groups
outer.KIND...      slots and groups of the outer optimizer, in jobs with rounds
also.NAME.KEY      an entry in the state_dict of an object in `also`
mode.KIND          frozen parameters, modules in evaluation mode, the parameters of each group,
                   and the last step's loss and norm (see adapter.py). Not part of the digest: see
                   ddl_elastic.frameworks.protocol.MODE
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from ddl_elastic.frameworks.protocol import MODE, State, is_mode
from ddl_torch.elastic.tensors import pack, unpack

_OUTER = "outer."


def read(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    also: Mapping[str, Any],
    outer: torch.optim.Optimizer | None = None,
) -> State:
    """Return the state; see ddl_elastic.frameworks.protocol.Framework.state."""
    state = {name: pack(name, value) for name, value in _named(model, optimizer, also)}
    if outer:
        state |= {f"{_OUTER}{n}": pack(f"{_OUTER}{n}", value) for n, value in _optimizer(outer)}
    return state


def _named(
    model: nn.Module, optimizer: torch.optim.Optimizer, also: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    for name, value in model.state_dict(keep_vars=True).items():
        is_changed_by_shares = isinstance(value, Tensor) and not isinstance(value, nn.Parameter)
        yield f"model.{name}", value.clone() if is_changed_by_shares else value
    yield from _optimizer(optimizer)
    for name, each in also.items():
        yield from ((f"also.{name}.{key}", value) for key, value in each.state_dict().items())
    for name, (module, key) in _volatile(model).items():
        yield f"buffer.{name}", module._buffers[key].clone()
    yield f"{MODE}frozen", [n for n, each in model.named_parameters() if not each.requires_grad]
    yield f"{MODE}evaluating", [n for n, each in model.named_modules() if not each.training]
    yield f"{MODE}groups", _group_names(model, optimizer)


def _optimizer(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Any]]:
    found = optimizer.state_dict()
    for kind, parts in (
        ("slot", found["state"].items()),
        ("group", enumerate(found["param_groups"])),
    ):
        for number, part in parts:
            for name in (each for each in part if each != "params"):
                yield f"{kind}.{number}.{name}", part[name]


def _volatile(model: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Return the module and the key of each buffer with persistent=False, by its full name."""
    return {
        f"{prefix}.{key}".lstrip("."): (module, key)
        for prefix, module in model.named_modules()
        for key in sorted(module._non_persistent_buffers_set)
        if module._buffers.get(key) is not None
    }


def _group_names(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[list[str]]:
    """Return the names of the parameters of each of the optimizer's groups."""
    names = {id(each): name for name, each in model.named_parameters()}
    return [
        [names.get(id(each), f"of shape {[*each.shape]}") for each in group["params"]]
        for group in optimizer.param_groups
    ]


def check_schedule(optimizer: torch.optim.Optimizer, also: Iterable[Any]) -> None:
    """Raise ValueError if a learning-rate schedule drives the optimizer but is not in `also`: a
    joining process would start it from the beginning. A schedule marks the optimizer's `step`."""
    if not hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        return
    if not any(_has_schedule(each, optimizer) for each in also):
        raise ValueError(
            "a learning-rate schedule changes the optimizer, but `also` does not contain it: pass"
            ' also={"schedule": schedule}'
        )


def _has_schedule(found: Any, optimizer: torch.optim.Optimizer, depth: int = 2) -> bool:
    """Return True if `found` is a schedule of the optimizer, or an object that holds one."""
    if found is optimizer or depth < 0:
        return False
    if getattr(found, "optimizer", None) is optimizer:
        return True
    held = found if isinstance(found, dict | list | tuple) else getattr(found, "__dict__", {})
    parts = held.values() if isinstance(held, dict) else held
    return any(_has_schedule(each, optimizer, depth - 1) for each in parts)


def write(
    state: State,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    also: Mapping[str, Any],
    outer: torch.optim.Optimizer | None = None,
) -> None:
    """Load a state into the model, the optimizers and the other objects. Entries that the state
    lacks, such as slots that do not exist yet, are removed from them. Without `outer`, the entries
    of an outer optimizer are ignored; they are loaded once the program has created it. Raises
    ValueError if the state belongs to another model or optimizer."""
    modes = {key.removeprefix(MODE): unpack(key, state[key]) for key in state if is_mode(key)}
    _compare_groups(modes.get("groups"), _group_names(model, optimizer))
    others: dict[str, dict[str, Any]] = {
        "model": {},
        "buffer": {},
        **{f"also.{name}": {} for name in also},
    }
    optimizers: dict[str, dict[str, Any]] = {"": {}, _OUTER: {}}  # entries by prefix
    try:
        for key, packed in state.items():
            if is_mode(key):
                continue
            kind, rest = key.split(".", 1)
            if kind in others:
                others[kind][rest] = unpack(key, packed)
            elif kind == "also":
                name, rest = rest.split(".", 1)
                others[f"{kind}.{name}"][rest] = unpack(key, packed)
            else:
                prefix = _OUTER if key.startswith(_OUTER) else ""
                optimizers[prefix][key.removeprefix(prefix)] = unpack(key, packed)
        model.load_state_dict(others.pop("model"))
        _write_buffers(model, others.pop("buffer"))
        _write_optimizer(optimizer, optimizers[""])
        if outer and optimizers[_OUTER]:
            _write_optimizer(outer, optimizers[_OUTER])
        for name, each in also.items():
            each.load_state_dict(others[f"also.{name}"])
    except (KeyError, RuntimeError) as error:
        raise ValueError(f"the state belongs to another model: {error}") from error
    _write_modes(model, modes)


def _write_optimizer(optimizer: torch.optim.Optimizer, entries: Mapping[str, Any]) -> None:
    groups = [{"params": each["params"]} for each in optimizer.state_dict()["param_groups"]]
    parts: dict[str, dict[int, dict[str, Any]]] = {"slot": {}, "group": dict(enumerate(groups))}
    for key, value in entries.items():
        kind, number, name = key.split(".", 2)
        parts[kind].setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({"state": parts["slot"], "param_groups": groups})
    _keep_types(optimizer, parts["slot"])


def _compare_groups(found: list[list[str]] | None, own: list[list[str]]) -> None:
    """Raise ValueError if the optimizer's groups and the state's groups have different
    parameters."""
    if found is None or found == own:
        return
    nothing: list[str] = []
    for number, (names, here) in enumerate(zip_longest(found, own, fillvalue=nothing)):
        if names != here:
            only = sorted({*names} ^ {*here})
            raise ValueError(
                f"the state belongs to another optimizer: group {number} of param_groups has"
                f" {len(names)} parameters in the state and {len(here)} here; only one of them"
                f" has {', '.join(only[:5]) or 'this order of the parameters'}"
            )


def _write_buffers(model: nn.Module, found: dict[str, Tensor]) -> None:
    """Set the buffers that the state_dict lacks. States of earlier versions have none of them."""
    own = _volatile(model)
    if found and found.keys() != own.keys():
        only = ", ".join(sorted(found.keys() ^ own.keys()))
        raise RuntimeError(f"the state has other non-persistent buffers than this model: {only}")
    for name, value in found.items():
        module, key = own[name]
        buffer = module._buffers[key]
        assert buffer is not None
        if buffer.shape != value.shape or buffer.dtype != value.dtype:
            raise RuntimeError(
                f"the buffer {name} is {value.dtype} {tuple(value.shape)} in the state, but"
                f" {buffer.dtype} {tuple(buffer.shape)} in this model"
            )
        with torch.no_grad():
            buffer.copy_(value)


def _keep_types(optimizer: torch.optim.Optimizer, slots: dict[int, dict[str, Any]]) -> None:
    """Restore the types of slots. Optimizer.load_state_dict converts them to their parameter's
    type, which may be narrower."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for number, slot in slots.items():
        held = optimizer.state[parameters[number]]
        for name, value in slot.items():
            if isinstance(value, Tensor) and held[name].dtype != value.dtype:
                held[name] = value.to(held[name].device)


def _write_modes(model: nn.Module, modes: dict[str, Any]) -> None:
    """Freeze parameters and set training modes. States of earlier versions have no modes."""
    if modes:
        frozen, evaluating = {*modes["frozen"]}, {*modes["evaluating"]}
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name not in frozen)
        for name, module in model.named_modules():
            module.training = name not in evaluating
