# SPDX-License-Identifier: Apache-2.0
"""Elastic training with PyTorch: the adapter that ddl_elastic uses for torch.

    import ddl_torch.elastic as elastic

    job = elastic.Job(model, optimizer, batch=256, logical=16, also={"schedule": schedule})
    for step in job.steps(train_set, passes=10):
        for x, y in step:                           # this process's shares of the step
            step.backward(loss_fn(model(x), y))     # instead of loss.backward()
        optimizer.step()
        schedule.step()

or, on a slow network, in rounds of local steps:

    for round in job.rounds(train_set, passes=10, local_steps=50):
        for batches in round:                       # of each of this process's logical workers
            for x, y in batches:
                round.backward(loss_fn(model(x), y))
                optimizer.step()

docs/elastic/ explains the guarantees, and what a program must not do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

import ddl_core
from ddl_core.base.names import Wire
from ddl_elastic.shares.loading import Collate, Dataset, SampleStream
from ddl_elastic.storage.saving import policy_find
from ddl_elastic.worker import joining
from ddl_elastic.worker.rounds import ElasticRound, RoundsLoop
from ddl_torch.elastic.adapter import BUCKET_BYTES, BuffersKind, TorchAdapter
from ddl_torch.elastic.pins import pin, seed
from ddl_torch.elastic.refusals import refuse_sharded_job
from ddl_torch.elastic.rounds import MomentsKind

__all__ = ["Adapter", "Job", "TorchAdapter", "pin", "preload", "seed"]

Adapter = TorchAdapter  # the name by which ddl_elastic finds it


class Job(RoundsLoop):
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
    clip_norm              a constant: the maximum norm of the averaged gradients. If the norm is
                           larger, the job scales the gradients down to it before
                           `optimizer.step()`. None: no clipping. The norm is summed in a fixed
                           order, see `norm`
    also                   other objects with a state that the loop changes, by name: schedules,
                           averaged models, gradient scalers; saved and sent to joining processes
    strict                 make hidden state an error, not a warning: docs/elastic/reference.md
    shard                  True to shard the optimizer's state: docs/elastic/sharded.md
    copies                 with shard=True, the number of processes besides the owner that hold each
                           range of the state. The job survives so many deaths at once
    blocks                 with shard=True: modules whose parameters a process has in memory only
                           while it computes with them, such as the layers of a transformer
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
        clip_norm: float | None = None,
        also: Mapping[str, Any] | None = None,
        strict: bool = False,
        shard: bool = False,
        copies: int = 1,
        blocks: Iterable[nn.Module] = (),
        checkpoint: str | None = None,
        every: int = 100,
        keep: int = 3,
        **options: Any,
    ) -> None:
        pin(threads)
        kind: Callable[..., TorchAdapter] = TorchAdapter
        blocks = [*blocks]
        if shard:
            from ddl_torch.elastic.block_adapter import BlockAdapter
            from ddl_torch.elastic.sharded import ShardedAdapter

            kind = partial(ShardedAdapter, copies=copies)
            if blocks:
                kind = partial(BlockAdapter, copies=copies, blocks=blocks)
        elif copies != 1:
            raise ValueError(f"copies is {copies}; it needs shard=True")
        elif blocks:
            raise ValueError("blocks needs shard=True")
        adapter = kind(
            model,
            optimizer,
            buffers=buffers,
            bucket_bytes=bucket_bytes,
            also=also,
            clip_norm=clip_norm,
        )
        options["policy"] = policy_find(checkpoint, every, keep)
        joined = {"comm": comm} if comm else joining.join()
        if shard:
            refuse_sharded_job(options)
        constants: dict[str, Any] = {"batch": batch, "logical": logical, "seed": seed}
        super().__init__(adapter, **joined, **constants, strict=strict, **options)
        self._adapter = adapter

    @property
    def norm(self) -> float:
        """The norm of the last committed step's gradients before they were clipped, equal on all
        ranks; nan without clip_norm."""
        return self._adapter.clipping.norm

    def rounds(
        self,
        data: Dataset | SampleStream,
        passes: int | None = None,
        *,
        local_steps: int,
        rounds: int | None = None,
        outer: torch.optim.Optimizer | None = None,
        moments: MomentsKind = "averaged",
        wire: Wire | None = None,
        loader_workers: int = 0,
        collate: Collate | None = None,
    ) -> Iterator[ElasticRound]:
        """Yield rounds of local steps (DiLoCo), for `passes` passes over the data (default: 1).

        In each round, each logical worker takes `local_steps` steps from the common parameters, on
        batches of batch / logical samples. The job's optimizer applies them. Then the outer
        optimizer applies the average of all changes to the common parameters. The caller iterates
        over each round and over its batches to their ends.

        local_steps     a constant of the job
        rounds          number of rounds, instead of passes; required for a stream
        outer           the outer optimizer, whose state is part of the job's state. Its gradients
                        are the parameters before the local steps minus the average after them.
                        None: SGD with lr=0.7 and Nesterov momentum 0.9
        moments         the state with which the job's optimizer starts a logical worker's steps.
                        "averaged": the average over all logical workers at the end of the last
                        round, which is computed together with the average of the changes. "fresh":
                        the state before the first round, usually none
        wire            the wire format in which the changes are averaged, a constant of the job:
                        "bf16", "int8" or "int4"; see docs/elastic/rounds.md. None: "f32"
        loader_workers, collate  see steps

        Raises ValueError for an invalid argument.
        """
        self._adapter.set_outer(outer, moments, wire)
        options: dict[str, Any] = {"loader_workers": loader_workers, "collate": collate}
        options |= {"local_steps": local_steps, "wire": wire}
        return self.start_rounds(data, passes, steps=rounds, **options)


def preload() -> None:
    """Run one step, so that PyTorch imports modules that it loads on first use. This takes seconds,
    which workers forked from this process then save."""
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    torch.optim.SGD([parameter]).step()
