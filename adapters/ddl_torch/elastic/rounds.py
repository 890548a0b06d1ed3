# SPDX-License-Identifier: Apache-2.0
"""Rounds of local steps, as one process computes them.

Each share starts from the committed parameters and from the committed state of the optimizer. Its
gradients are the differences that its local steps have made. The outer optimizer applies the
average of all shares' differences.

The defaults are the same as in DiLoCo (Douillard et al., arXiv 2311.08105).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ddl_elastic.step.packed import WIRES
from ddl_torch.elastic.moments import Moments
from ddl_torch.elastic.refusals import refuse
from ddl_torch.elastic.state import check_schedule
from ddl_torch.elastic.tensors import pack, wide

MomentsKind = Literal["fresh", "averaged"]
LEARNING_RATE, MOMENTUM = 0.7, 0.9


class Rounds:
    """The optimizers of a job with rounds, and the values to which each share is reset.

    inner    the optimizer of the local steps
    outer    the optimizer that applies the average of the shares' differences; None: SGD with
             Nesterov momentum
    moments  the state of the inner optimizer with which each share starts. "fresh": the state from
             before the first round, usually none. "averaged": the average over all shares of the
             last round
    also     the job's other objects with a state, which local steps must not change
    wire     the wire format in which the differences and the moments are averaged, or None
    """

    def __init__(
        self,
        model: nn.Module,
        inner: torch.optim.Optimizer,
        outer: torch.optim.Optimizer | None,
        moments: MomentsKind,
        also: Mapping[str, Any],
        wire: str | None = None,
    ) -> None:
        if moments not in ("fresh", "averaged"):
            raise ValueError(f'moments is "{moments}"; must be "fresh" or "averaged"')
        if outer is None:
            outer = torch.optim.SGD(
                model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, nesterov=True
            )
        refuse(model, outer)
        check_schedule(outer, also.values())
        known = {each for group in outer.param_groups for each in group["params"]}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and parameter not in known:
                raise ValueError(f"the outer optimizer lacks the parameter {name}")
        if wire not in (None, "f32", *WIRES):
            raise ValueError(f"wire is {wire!r}; must be one of f32, {', '.join(WIRES)}")
        self.outer = outer
        self.wires: tuple[str, str] | None = None  # of the differences, and of the moments
        if wire and wire != "f32":
            self.wires = wire, _wire_of_moments(inner, wire)
        self._inner, self._moments, self._also = inner, moments, also
        self._start: dict[nn.Parameter, Tensor] = {}  # empty outside of rounds
        self._settings: list[dict[str, Any]] = []  # of the inner optimizer's groups
        self._slots: dict[Any, Any] = {}
        self._others: dict[str, Any] | None = None  # the state of `also` before the first share
        self._losses: list[Tensor] = []

    def make_moments(self) -> Moments | None:
        """Return the moments that are averaged, or None."""
        return Moments(self._inner) if self._moments == "averaged" else None

    def begin(self, parameters: Iterable[nn.Parameter]) -> None:
        """Start the local steps of a share, which train these parameters."""
        self._losses = []
        if self._start:
            return
        self._start = {each: each.detach().clone() for each in parameters}
        self._slots = _copy(self._inner.state)
        self._settings = [_copy(group, without="params") for group in self._inner.param_groups]
        if self._others is None:
            self._others = self._pack_others()

    def restore(self) -> None:
        """Undo what local steps have changed."""
        if not self._start:
            return
        with torch.no_grad():
            torch._foreach_copy_(list(self._start), list(self._start.values()))
        self._inner.state.clear()
        self._inner.state.update(_copy(self._slots))
        for group, settings in zip(self._inner.param_groups, self._settings, strict=True):
            group.update(_copy(settings))

    def forget(self) -> None:
        """Drop the committed values, because the parameters have been set to other values."""
        self._start, self._slots = {}, {}

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of a local step."""
        loss.backward()
        self._losses.append(loss.detach())

    def end(self) -> float:
        """End the local steps of a share. Return the mean of their losses."""
        if self._others and self._others != self._pack_others():
            changed = [n for n, each in self._pack_others().items() if self._others[n] != each]
            raise RuntimeError(
                f"local steps have changed also={{{changed[0]!r}: ...}}, which belongs to all"
                " logical workers: change it between two rounds. To change the learning rate of"
                " local steps, compute it from round.local_step, and set it in"
                " optimizer.param_groups"
            )
        self._others = {}
        return sum(loss.item() for loss in self._losses) / len(self._losses)

    def difference(self, parameter: nn.Parameter) -> Tensor:
        """Return the parameter's value before the local steps, minus its value after them."""
        kind = wide(parameter)
        change = self._start[parameter].to(kind) - parameter.detach().to(kind)
        return change.cpu().contiguous()

    def step(self) -> None:
        """Step the outer optimizer from the committed parameters."""
        self.restore()
        self.forget()
        self.outer.step()

    def _pack_others(self) -> dict[str, Any]:
        return {
            name: [
                (key, packed.dtype, packed.data.tobytes())
                for key, value in each.state_dict().items()
                for packed in [pack(f"also.{name}.{key}", value)]
            ]
            for name, each in self._also.items()
        }


def _wire_of_moments(optimizer: torch.optim.Optimizer, wire: str) -> str:
    """Return how the optimizer's moments are averaged. SGD adds its moments to gradients. Adam
    divides by one of its moments, which may be much smaller than others in its block."""
    if type(optimizer) is torch.optim.SGD:
        return wire
    return "bf16" if type(optimizer) in (torch.optim.Adam, torch.optim.AdamW) else "average"


def _copy(value: Any, without: str = "") -> Any:
    """Return a copy with the same keys and copies of the values."""
    if isinstance(value, Tensor):
        return value.clone()
    if not isinstance(value, Mapping):
        return deepcopy(value)
    return {key: _copy(each) for key, each in value.items() if key != without}
