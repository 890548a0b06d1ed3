# SPDX-License-Identifier: Apache-2.0
"""The PyTorch adapter of ddl_elastic: computes shares and applies their average."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, compress
from math import inf, nan
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ddl_elastic.frameworks import protocol
from ddl_elastic.sharded.norms import sum_squares
from ddl_torch.elastic import environment, modules
from ddl_torch.elastic import state as elastic_state
from ddl_torch.elastic.buffers import ModelBuffers
from ddl_torch.elastic.clipping import Clipping
from ddl_torch.elastic.gradients import Gradients
from ddl_torch.elastic.layout import ShareLayout
from ddl_torch.elastic.loading import Loading
from ddl_torch.elastic.moments import Moments
from ddl_torch.elastic.pins import seed
from ddl_torch.elastic.refusals import refuse, refuse_clipping
from ddl_torch.elastic.rounds import MomentsKind, Rounds
from ddl_torch.elastic.searched import Searched
from ddl_torch.elastic.shares import Share, Shares, add
from ddl_torch.elastic.tensors import pack, unpack, wide

BuffersKind = Literal["average", "first"]
BUCKET_BYTES = 25 << 20  # the default of DistributedDataParallel


class TorchAdapter(Loading, Searched):
    """The PyTorch adapter; implements ddl_elastic.frameworks.protocol.LocalFramework."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Callable[..., Tensor] | None = None,
        schedule: Callable[..., Any] | None = None,
        *,
        buffers: BuffersKind = "average",
        bucket_bytes: float = BUCKET_BYTES,
        also: Mapping[str, Any] | None = None,
        clip_norm: float | None = None,
    ) -> None:
        if buffers not in ("average", "first"):
            raise ValueError(f'buffers is {buffers!r}; must be "average" or "first"')
        self.model, self.optimizer, self.loss_function = model, optimizer, loss
        self._schedule = schedule(optimizer) if schedule else None
        self._also = dict(also or {})
        if self._schedule:
            self._also["schedule"] = self._schedule
        self.loss = nan
        self.clipping = Clipping(clip_norm)
        refuse(model, optimizer)
        refuse_clipping(clip_norm, self._also)
        self._takes_first, self._bucket_bytes = buffers == "first", bucket_bytes
        self._changes = -1  # the value of modules.changes at the last look at the model
        self._tensors: list[Tensor] = []  # the model's parameters, then its buffers, at that time
        self._trained: list[bool] | None = None  # for each parameter: True if the arrays have it
        self._gradients = Gradients([], bucket_bytes)
        self._rounds: Rounds | None = None
        self._moments: Moments | None = None  # None if they are not averaged
        self._is_local = False  # shares are runs of local steps
        self._worker = 0  # the logical worker whose share is being computed
        self._has_begun = False

    def _look_up(self) -> None:
        """Update the layout of the arrays. The program may freeze parameters between two steps."""
        if self._changes != modules.changes:
            self._changes = modules.changes
            self._parameters = list(self.model.parameters())
            tensors = [*self._parameters, *self.model.buffers()]
            if [*map(id, tensors)] != [*map(id, self._tensors)]:
                self._tensors, self._trained = tensors, None
        trained = [each.requires_grad for each in self._parameters]
        if trained != self._trained:
            self._trained = trained
            self._lay_out([*compress(self._parameters, trained)])

    def _lay_out(self, trained: Sequence[nn.Parameter]) -> None:
        self._gradients.close()
        # One bucket for a round, which adds nothing early: the blocks of a wire format, and so the
        # bits, must not depend on bucket_bytes.
        self._gradients = Gradients(trained, inf if self._is_local else self._bucket_bytes)
        self._buffers = ModelBuffers(self.model, self._takes_first)
        gradients, buffers = self._gradients.buckets, self._buffers.kinds
        self._moments = self._rounds.make_moments() if self._rounds and self._is_local else None
        moments = self._moments.kinds if self._moments else ()
        apart = hasattr(self, "shards")
        wires = self._rounds.wires if self._rounds and self._is_local else None
        rounded = [*gradients, *(each for each in moments if each[0].dim())]
        if wires and any(wide(each[0]) != torch.float32 for each in rounded):
            raise ValueError(f"wire is {wires[0]!r}, but the job averages float64: use float32")
        self._layout = ShareLayout(gradients, buffers, self._buffers.op, moments, apart, wires)
        self._shares = Shares(self._layout)
        self._result = self._shares.take_arrays()

    # ---- a share ----

    seed = staticmethod(seed)

    def environment(self) -> dict[str, str]:
        return environment.describe(self.model)

    def begin(self, worker: int) -> None:
        self._worker = worker
        for parameter in self._parameters:
            parameter.grad = None
        self._buffers.begin()
        if self._rounds:
            self._rounds.restore()

    def run(self, batch: Any, ready: protocol.Ready | None = None) -> Share:
        loss, weight = self._compute_loss(batch)
        return self.backward(loss, ready, weight)

    def _compute_loss(self, batch: Any) -> tuple[Tensor, float | Tensor]:
        assert self.loss_function
        *inputs, target = batch
        loss = self.loss_function(self.model(*inputs), target)
        return loss if isinstance(loss, tuple) else (loss, 1.0)

    def backward(
        self, loss: Tensor, ready: protocol.Ready | None = None, weight: float | Tensor = 1.0
    ) -> Share:
        share = self._gradients.compute(loss, self._shares, ready)
        self._buffers.take(share, self._worker)
        share.numbers[:2] = loss.item(), protocol.check_weight(float(weight))
        return share

    def tensors(self, share: Any) -> Iterator[tuple[str, protocol.Array]]:
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        for bucket, parts in zip(self._gradients.buckets, share.parts, strict=True):
            for parameter, part in zip(bucket, parts, strict=True):
                yield names[parameter], part.numpy()
        for section in share.buffers:
            yield f"buffers of {section.array.dtype}", section.array
        for section in share.moments:
            yield f"moments of {section.array.dtype}", section.array
        yield "loss", share.numbers

    def free(self, share: Any) -> None:
        self._shares.free(share)

    add = staticmethod(add)

    # ---- a run of local steps ----

    def set_outer(
        self, outer: torch.optim.Optimizer | None, moments: MomentsKind, wire: str | None = None
    ) -> None:
        if self.clipping.limit is not None:
            raise ValueError("job.rounds does not support clip_norm: leave out one of the two")
        if outer is None and self._rounds:
            outer = self._rounds.outer
        self._rounds = Rounds(self.model, self.optimizer, outer, moments, self._also, wire)
        self._trained = None  # other arrays may be averaged, or in another format

    def set_local(self, is_local: bool) -> None:
        if is_local != self._is_local:
            self._is_local, self._trained = is_local, None

    def begin_local(self) -> None:
        assert self._rounds
        self._rounds.begin(self._gradients.parameters)

    def backward_local(self, loss: Tensor, weight: float | Tensor = 1.0) -> None:
        assert self._rounds
        for parameter in self._parameters:
            parameter.grad = None
        self._rounds.backward(loss / weight)

    def run_local(self, batch: Any) -> None:
        self.backward_local(*self._compute_loss(batch))
        self.optimizer.step()

    def end_local(self) -> Share:
        assert self._rounds
        share = self._shares.take()
        share.numbers.fill(1)
        share.numbers[0] = self._rounds.end()
        share.parts = [
            [self._rounds.difference(each) for each in bucket] for bucket in self._gradients.buckets
        ]
        self._buffers.take(share, self._worker)
        if self._moments:
            self._moments.take(share.moments)
        return share

    def step_outer(self) -> None:
        assert self._rounds
        self._rounds.step()
        if self._moments:
            self._moments.apply(self._result.moments)
        for parameter in self._parameters:
            parameter.grad = None
        if self._schedule:
            self._schedule.step()

    # ---- the result ----

    def result(self) -> protocol.Share:
        if not self._has_begun:  # the program has created its schedules by now
            elastic_state.check_schedule(self.optimizer, self._also.values())
            self._has_begun = True
        self._look_up()
        return self._result

    def ops(self) -> list[str]:
        return self._layout.ops

    def apply(self) -> None:
        weight = protocol.check_total(float(self._result.numbers[1]))
        self.loss = float(self._result.numbers[0]) / weight
        parts, order = chain(*self._result.parts), (self._parameters, self._gradients.parameters)
        squares = (sum_squares(each.view(-1).numpy()) for each in parts)
        factor = self.clipping.find_factor(*order, lambda: squares, weight)
        self._gradients.apply(self._result, weight, factor)
        self._buffers.apply(self._result)

    def update(self) -> None:
        self.optimizer.step()
        if self._schedule:
            self._schedule.step()

    # ---- the state ----

    def state(self) -> protocol.State:
        return self._read(self.optimizer)

    def _read(self, optimizer: Any) -> protocol.State:
        """Return the state, with this optimizer's state. It includes the loss and the norm of the
        last step, so that they are the same on joining ranks and after a resume."""
        figures = {"loss": self.loss, "norm": self.clipping.norm}
        state = elastic_state.read(self.model, optimizer, self._also, self._outer)
        return state | {f"{protocol.MODE}{n}": pack(n, value) for n, value in figures.items()}

    def load(self, state: protocol.State) -> None:
        elastic_state.write(state, self.model, self.optimizer, self._also, self._outer)
        figures = {n: state.get(f"{protocol.MODE}{n}") for n in ("loss", "norm")}
        loss, norm = (unpack(n, found) if found else nan for n, found in figures.items())
        self.loss, self.clipping.norm = loss, norm
        self._trained = None
        if self._rounds:
            self._rounds.forget()
