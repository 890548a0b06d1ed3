# SPDX-License-Identifier: Apache-2.0
"""Elastic training with PyTorch: ddl_elastic's half that knows torch.

    import ddl_torch.elastic as elastic

    job = elastic.Job(model, optimizer, batch=256, logical=16, also={"schedule": schedule})
    for step in job.steps(train_set, passes=10):
        for x, y in step:                           # this process's shares of the step
            step.backward(loss_fn(model(x), y))     # instead of loss.backward()
        optimizer.step()
        schedule.step()

docs/elastic/ tells what is promised, and what a program must not do.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Any, Literal

import torch
from torch import Tensor, nn

import ddl_core
from ddl_elastic.frameworks import protocol
from ddl_elastic.storage.saving import policy_find
from ddl_elastic.worker import joining
from ddl_elastic.worker.loop import ElasticStep, Loop
from ddl_torch.elastic import environment, modules
from ddl_torch.elastic import state as elastic_state
from ddl_torch.elastic.buffers import Buffers
from ddl_torch.elastic.gradients import Gradients
from ddl_torch.elastic.hidden import Hidden
from ddl_torch.elastic.layout import Layout
from ddl_torch.elastic.loading import Loading
from ddl_torch.elastic.pins import pin, seed
from ddl_torch.elastic.refusals import refuse
from ddl_torch.elastic.shares import Share, Shares, add

BuffersKind = Literal["average", "first"]
BUCKET_BYTES = 25 << 20  # as DistributedDataParallel has it

_log = logging.getLogger("ddl_elastic")


class Job(Loop):
    """An elastic job with its own training loop.

    batch, logical, seed   see docs/elastic/: they are constants of the job
    threads                of PyTorch in each process, a constant as well: other numbers, other bits
    buffers                "average", of what the shares change in them, as batch norm does, or
                           "first": as logical worker 0's share leaves them; a constant as well
    bucket_bytes           about the size of the buckets in which gradients are summed during the
                           backward pass: the same in all processes, but no constant
    comm                   of the processes of the job; None: those that `ddl elastic run` has
                           started, else as ddl_core.init finds them
    watchdog               seconds that the others wait for a process that hangs; 0: for ever
    also                   what else the loop changes that has a state, by name: schedules, averaged
                           models, gradient scalers. Checkpoints have it, and processes that join
    strict                 hidden state is an error instead of a warning: docs/elastic/reference.md
    checkpoint, every, keep  a folder or s3://bucket/prefix, from which the job goes on as well;
                           steps between two checkpoints; how many are kept
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        batch: int,
        logical: int,
        seed: int = 0,
        threads: int = 1,
        buffers: BuffersKind = "average",
        bucket_bytes: float = BUCKET_BYTES,
        comm: ddl_core.Comm | None = None,
        also: Mapping[str, Any] | None = None,
        strict: bool = False,
        checkpoint: str | None = None,
        every: int = 100,
        keep: int = 3,
        **options: Any,
    ) -> None:
        pin(threads)
        half = Half(model, optimizer, buffers=buffers, bucket_bytes=bucket_bytes, also=also)
        options["policy"] = policy_find(checkpoint, every, keep)
        joined = {"comm": comm} if comm else joining.join()
        super().__init__(half, **joined, batch=batch, logical=logical, seed=seed, **options)
        known = [optimizer, *(also or {}).values()]
        self._strict, self._hidden = strict, Hidden(model, known, self._report_hidden)
        half.on_apply = self._hidden.committed

    def steps(self, data: Any, *arguments: Any, **options: Any) -> Iterator[ElasticStep]:
        self._hidden.begin(data, sys._getframe(1))
        return super().steps(data, *arguments, **options)

    steps.__doc__ = Loop.steps.__doc__

    def _report_hidden(self, text: str) -> None:
        """Raises RuntimeError if the job is strict."""
        if self._strict:
            raise RuntimeError(text)
        if self.is_writer:
            _log.warning(text)


def preload() -> None:
    """Import what PyTorch imports only when it is first used: seconds, which workers that are
    forked from this process need not spend."""
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    torch.optim.SGD([parameter]).step()


class Half(Loading):
    """See ddl_elastic.frameworks.protocol.Framework."""

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
    ) -> None:
        if buffers not in ("average", "first"):
            raise ValueError(f'buffers is {buffers!r}; it is "average" or "first"')
        self.model, self.optimizer, self.loss_function = model, optimizer, loss
        self._schedule = schedule(optimizer) if schedule else None
        self._also = dict(also or {})
        if self._schedule:
            self._also["schedule"] = self._schedule
        self.loss = float("nan")
        refuse(model, optimizer)
        self._takes_first, self._bucket_bytes = buffers == "first", bucket_bytes
        self._changes = -1  # there were, when the model was looked at
        self._tensors: list[Tensor] = []  # that it had then: first its parameters
        self._trained: list[bool] | None = None  # which of the parameters the arrays are made for
        self._gradients = Gradients([], bucket_bytes)
        self._worker = 0  # whose share is computed
        self._has_begun = False
        self.on_apply: Callable[[], object] = lambda: None  # called with each step

    def _look_up(self) -> None:
        """What the arrays hold. The program may freeze a parameter between two steps."""
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
        self._gradients = Gradients(trained, self._bucket_bytes)
        self._buffers = Buffers(self.model, self._takes_first)
        gradients, buffers = self._gradients.buckets, self._buffers.kinds
        self._layout = Layout(gradients, buffers, self._buffers.op)
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

    def run(self, batch: Any, ready: protocol.Ready | None = None) -> Share:
        assert self.loss_function
        *inputs, target = batch
        loss = self.loss_function(self.model(*inputs), target)
        loss, weight = loss if isinstance(loss, tuple) else (loss, 1.0)
        return self.backward(loss, ready, weight)

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
        yield "loss", share.numbers

    def free(self, share: Any) -> None:
        self._shares.free(share)

    add = staticmethod(add)

    # ---- the result ----

    def result(self) -> Share:
        if not self._has_begun:  # what the program makes before its first step is there
            elastic_state.check_schedule(self.optimizer, self._also.values())
            self._has_begun = True
        self._look_up()
        return self._result

    def ops(self) -> list[str]:
        return self._layout.ops

    def apply(self) -> None:
        weight = protocol.check_total(float(self._result.numbers[1]))
        self.loss = float(self._result.numbers[0]) / weight
        self._gradients.apply(self._result, weight)
        self._buffers.apply(self._result)
        self.on_apply()

    def update(self) -> None:
        self.optimizer.step()
        if self._schedule:
            self._schedule.step()

    # ---- the state ----

    def state(self) -> protocol.State:
        return elastic_state.read(self.model, self.optimizer, self._also)

    def load(self, state: protocol.State) -> None:
        elastic_state.write(state, self.model, self.optimizer, self._also)
        self._trained = None
