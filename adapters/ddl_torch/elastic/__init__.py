# SPDX-License-Identifier: Apache-2.0
"""Elastic training with PyTorch: the adapter that ddl_elastic uses for torch.

    import ddl_torch.elastic as elastic

    job = elastic.Job(model, optimizer, batch=256, logical=16, also={"schedule": schedule})
    for step in job.steps(train_set, passes=10):
        for x, y in step:                           # this process's shares of the step
            step.backward(loss_fn(model(x), y))     # instead of loss.backward()
        optimizer.step()
        schedule.step()

docs/elastic/ explains the guarantees, and what a program must not do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Any, Literal

import torch
from torch import Tensor, nn

import ddl_core
from ddl_elastic.frameworks import protocol
from ddl_elastic.storage.saving import policy_find
from ddl_elastic.worker import joining
from ddl_elastic.worker.loop import Loop
from ddl_torch.elastic import environment, modules
from ddl_torch.elastic import state as elastic_state
from ddl_torch.elastic.buffers import ModelBuffers
from ddl_torch.elastic.gradients import Gradients
from ddl_torch.elastic.layout import ShareLayout
from ddl_torch.elastic.loading import Loading
from ddl_torch.elastic.pins import pin, seed
from ddl_torch.elastic.refusals import refuse, refuse_sharded_job
from ddl_torch.elastic.shares import Share, Shares, add

BuffersKind = Literal["average", "first"]
BUCKET_BYTES = 25 << 20  # the default of DistributedDataParallel


class Job(Loop):
    """An elastic job with its own training loop.

    batch, logical, seed   constants of the job; see docs/elastic/
    threads                PyTorch threads per process, a constant: it changes the bits of results
    buffers                a constant: "average" averages the shares' changes of the model's
                           buffers, such as batch norm's; "first" keeps logical worker 0's buffers
    bucket_bytes           the approximate size of the buckets in which gradients are summed during
                           the backward pass; the same in all processes, but not a constant
    comm                   a comm of the job's processes; None: the processes that `ddl elastic run`
                           started, else the result of ddl_core.init
    watchdog               seconds that the others wait for a process that hangs; 0 means no limit
    also                   other objects with a state that the loop changes, by name: schedules,
                           averaged models, gradient scalers; saved and sent to joining processes
    strict                 make hidden state an error, not a warning: docs/elastic/reference.md
    shard                  True to shard the optimizer's state: docs/elastic/sharded.md
    checkpoint, every, keep  a folder or s3://bucket/prefix, from which the job also resumes; steps
                           between two checkpoints; number of checkpoints to keep
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
        shard: bool = False,
        checkpoint: str | None = None,
        every: int = 100,
        keep: int = 3,
        **options: Any,
    ) -> None:
        pin(threads)
        kind: type[TorchAdapter] = TorchAdapter
        if shard:
            from ddl_torch.elastic.sharded import ShardedAdapter as kind
        adapter = kind(model, optimizer, buffers=buffers, bucket_bytes=bucket_bytes, also=also)
        options["policy"] = policy_find(checkpoint, every, keep)
        joined = {"comm": comm} if comm else joining.join()
        if shard:
            refuse_sharded_job(options)
        constants: dict[str, Any] = {"batch": batch, "logical": logical, "seed": seed}
        super().__init__(adapter, **joined, **constants, strict=strict, **options)


def preload() -> None:
    """Run one step, so that PyTorch imports modules that it loads on first use. This takes seconds,
    which workers forked from this process then save."""
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    torch.optim.SGD([parameter]).step()


class TorchAdapter(Loading):
    """The PyTorch adapter; implements ddl_elastic.frameworks.protocol.Framework."""

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
            raise ValueError(f'buffers is {buffers!r}; must be "average" or "first"')
        self.model, self.optimizer, self.loss_function = model, optimizer, loss
        self._schedule = schedule(optimizer) if schedule else None
        self._also = dict(also or {})
        if self._schedule:
            self._also["schedule"] = self._schedule
        self.loss = float("nan")
        refuse(model, optimizer)
        self._takes_first, self._bucket_bytes = buffers == "first", bucket_bytes
        self._changes = -1  # the value of modules.changes at the last look at the model
        self._tensors: list[Tensor] = []  # the model's parameters, then its buffers, at that time
        self._trained: list[bool] | None = None  # for each parameter: True if the arrays have it
        self._gradients = Gradients([], bucket_bytes)
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
        self._gradients = Gradients(trained, self._bucket_bytes)
        self._buffers = ModelBuffers(self.model, self._takes_first)
        gradients, buffers = self._gradients.buckets, self._buffers.kinds
        self._layout = ShareLayout(gradients, buffers, self._buffers.op, hasattr(self, "shards"))
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
        self._gradients.apply(self._result, weight)
        self._buffers.apply(self._result)

    def update(self) -> None:
        self.optimizer.step()
        if self._schedule:
            self._schedule.step()

    # ---- for the search for hidden state, see ddl_elastic/hidden/ ----

    def held(self) -> list[Any]:
        """Return the parts of the job's state."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        return [*tensors, self.optimizer, *self._also.values()]

    @property
    def walked(self) -> list[Any]:
        """The objects that may have a state besides the job's."""
        return [self.model, self.loss_function] if self.loss_function else [self.model]

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the parameters."""
        return [tuple(each.shape) for each in self.model.parameters()]

    # ---- the state ----

    def state(self) -> protocol.State:
        return elastic_state.read(self.model, self.optimizer, self._also)

    def load(self, state: protocol.State) -> None:
        elastic_state.write(state, self.model, self.optimizer, self._also)
        self._trained = None


Adapter = TorchAdapter  # the name by which ddl_elastic finds it
