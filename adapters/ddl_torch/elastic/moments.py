# SPDX-License-Identifier: Apache-2.0
"""The state of the optimizer of local steps, such as Adam's moments, as tensors that are averaged
over the shares of a round."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from ddl_torch.elastic.layout import Section
from ddl_torch.elastic.tensors import wide


class Moments:
    """The tensors that the optimizer keeps for each parameter after its first step. If a parameter
    has not been used, its tensors do not exist yet and count as 0.

    Raises TypeError if the optimizer keeps anything else.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        # By type of addition, and apart for numbers such as a step count: the parameter, the name
        # of the tensor, and a tensor like it.
        self._slots: dict[tuple[torch.dtype, bool], list[tuple[nn.Parameter, str, Tensor]]] = {}
        for parameter, name, like in _find_slots(optimizer):
            kind = wide(like), like.dim() == 0
            self._slots.setdefault(kind, []).append((parameter, name, like))
        self.kinds = [[like for *_, like in slots] for slots in self._slots.values()]

    def take(self, sections: Iterable[Section]) -> None:
        """Copy the tensors to the sections of a share."""
        for section, slots in zip(sections, self._slots.values(), strict=True):
            for part, (parameter, name, _) in zip(section.parts, slots, strict=True):
                found = self._optimizer.state.get(parameter, {}).get(name)
                part.zero_() if found is None else part.copy_(found)

    def apply(self, sections: Iterable[Section]) -> None:
        """Set the optimizer's tensors to their averages over the shares."""
        for section, slots in zip(sections, self._slots.values(), strict=True):
            for part, (parameter, name, like) in zip(section.parts, slots, strict=True):
                self._optimizer.state[parameter][name] = part.to(like, copy=True)


def _find_slots(optimizer: torch.optim.Optimizer) -> Iterable[tuple[nn.Parameter, str, Tensor]]:
    """Yield the tensors that a copy of the optimizer keeps after a step."""
    trial = deepcopy(optimizer)
    for group, own in zip(trial.param_groups, optimizer.param_groups, strict=True):
        for copy, parameter in zip(group["params"], own["params"], strict=True):
            if parameter.requires_grad:
                copy.grad = torch.zeros_like(copy)
    trial.step()
    for group, own in zip(trial.param_groups, optimizer.param_groups, strict=True):
        for copy, parameter in zip(group["params"], own["params"], strict=True):
            values: dict[str, Any] = trial.state.get(copy, {})
            for name, value in sorted(values.items()):  # a loaded state has another order
                if isinstance(value, Tensor):
                    yield parameter, name, torch.empty_like(value)
                elif value is not None:
                    raise TypeError(
                        f"the optimizer keeps {name}, a {type(value).__name__}, which cannot be"
                        ' averaged over logical workers: use moments="fresh"'
                    )
