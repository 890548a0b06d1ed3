# SPDX-License-Identifier: Apache-2.0
"""An elastic job without a custom training loop: `Job(...).train()`."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddl_elastic.base import environment, timeline
from ddl_elastic.base.audits import find_options
from ddl_elastic.base.protocol import JobChannel
from ddl_elastic.coordinator import training
from ddl_elastic.coordinator.coordinator import Coordinator
from ddl_elastic.coordinator.progress import Progress
from ddl_elastic.coordinator.worker_registry import Size
from ddl_elastic.engines import AgentSpec
from ddl_elastic.engines.local import LocalEngine
from ddl_elastic.frameworks.protocol import (
    Framework,
    LocalFramework,
    State,
    digest,
    find_adapter,
    loaded_adapters,
)
from ddl_elastic.shares.assign import legal_sizes
from ddl_elastic.shares.loading import Collate, Dataset, SampleStream, count_samples, count_steps
from ddl_elastic.shares.sampler import Sampler, model_seed
from ddl_elastic.step.membership import leave_when_asked
from ddl_elastic.step.watchdog import Watchdog
from ddl_elastic.storage.saving import policy_find
from ddl_elastic.worker import joining, trainer
from ddl_elastic.worker.loop import WATCHDOG


@dataclass(frozen=True)
class Constants:
    """The job's settings on which the final state depends. They never change."""

    batch: int
    logical: int
    seed: int
    threads: int


class Job:
    """The elastic training of one model.

    model      a function or class without arguments that returns the model. The framework must be
               imported before `train`
    data       the samples: an object with a length and items (input, target), or a stream with
               `seek(position)`, which returns such pairs by `next`
    loss       a function of a share's outputs and targets: returns the mean, or (sum, weight)
    collate    a function that makes a batch of a share's samples; None means the framework's own
    optimizer  a function of the model's parameters that returns the optimizer
    schedule   a function of the optimizer that returns its schedule, which is stepped after each
               step

    The result depends on these constants:
    batch      the number of samples in a step, of all logical workers together
    logical    the number of logical workers and of shares in a step; at least the number of workers
    passes     the number of passes over the data (default: 1)
    steps      the number of steps, instead of passes; required for a stream
    seed       the seed of the initial model, the samples' order, and all other random numbers
    threads    the number of threads of the framework in each worker
    local_steps  train in rounds of this many local steps of each logical worker, see
               ddl_torch.elastic.Job.rounds; `steps`, `every` and `schedule` then count rounds
    outer, moments, wire  for rounds, see ddl_torch.elastic.Job.rounds; `outer` is a function of
               the model's parameters
    buffers    how shares update the model's buffers, such as batch norm's statistics: "average"
               averages the changes by all shares, "first" keeps the changes by logical worker 0's
               share
    clip_norm  the maximum norm of the averaged gradients, see ddl_torch.elastic.Job; PyTorch only

    The result does not depend on these:
    workers    the number of processes, or "least:most" for as many as there are cores, within
               these limits
    replace    True to replace dead workers; the other workers send the state to the new ones
    loader_workers  the number of processes that read ahead for each worker; 0 reads in the worker
    watchdog   the seconds after which a worker that hangs is killed: at least the time of 5 usual
               steps, and 10 times as long in the first step; 0 means never
    checkpoint  a folder for checkpoints, or s3://bucket/prefix. A job that was interrupted
               continues from its newest checkpoint
    every      the number of steps between two checkpoints; one more is written at the end
    keep       the number of checkpoints to keep
    audit      the fraction of shares, such as 0.01, that a second worker computes again to find
               machines with wrong results. None means the value of `ddl elastic run --audit`, or 0
    audit_action  the action if committed steps may be wrong: "rollback" to a checkpoint before
               them, "continue" with them, or "stop"
    strict     True to make hidden state of the program an error instead of a warning
    progress   True to show a progress bar and the events on stderr
    trace      a file for a timeline of operations and recoveries, for Perfetto
    """

    def __init__(
        self,
        *,
        model: Callable[[], Any],
        data: Dataset | SampleStream,
        loss: Callable[..., Any],
        optimizer: Callable[..., Any],
        schedule: Callable[..., Any] | None = None,
        collate: Collate | None = None,
        batch: int,
        logical: int,
        workers: int | str = "1:4096",
        replace: bool = True,
        loader_workers: int = 0,
        passes: int | None = None,
        steps: int | None = None,
        local_steps: int | None = None,
        outer: Callable[..., Any] | None = None,
        moments: str = "averaged",
        wire: str | None = None,
        seed: int = 0,
        threads: int = 1,
        buffers: str = "average",
        clip_norm: float | None = None,
        watchdog: float = WATCHDOG,
        checkpoint: str | None = None,
        every: int = 100,
        keep: int = 3,
        audit: float | None = None,
        audit_action: str | None = None,
        strict: bool = False,
        progress: bool = True,
        trace: str | None = None,
    ) -> None:
        self._constants = Constants(batch, logical, seed, threads)
        sampler = Sampler(count_samples(data), batch * (local_steps or 1), logical, seed)
        self._steps = count_steps(sampler, passes, steps)
        self._reading: dict[str, Any] = {"data": data, "loader_workers": loader_workers}
        self._reading |= {"collate": collate, "steps": self._steps}
        self._local_steps, self._outer, self._moments = local_steps, outer, moments
        self._wire = wire
        if local_steps is not None:
            self._reading |= {"local_steps": local_steps, "wire": wire}
        elif wire is not None:
            raise ValueError(f"wire is {wire!r}; it needs local_steps")
        places = environment.cores() // threads
        least, most = parse_workers(workers)
        target = choose_workers(workers, logical, places)
        self._size = Size(target, least, max(target, min(most, logical)), replace)
        self._model = model
        self._loss, self._optimizer, self._schedule = loss, optimizer, schedule
        self._buffers, self._clip_norm = buffers, clip_norm
        environment.refuse_wire()
        rate, action = find_options(audit, audit_action)
        self._options: dict[str, Any] = {
            "batch": batch,
            "logical": logical,
            "seed": seed,
            "watchdog": Watchdog(watchdog).seconds,
            "policy": policy_find(checkpoint, every, keep),
            "audit": rate,
            "audit_action": action,
            "strict": strict,
        }
        self._progress, self._trace = progress, trace
        self._job: Coordinator | None = None
        self._part: dict[str, Any] = {}  # the report of a worker of `ddl elastic run`
        self._is_writer = True

    def train(self, on_progress: Callable[[dict[str, Any]], None] | None = None) -> Any:
        """Train in processes forked from this one, and return the trained model.

        If a worker dies, the others continue. Raises JobFailed if no worker with the state is left.

        In a worker of `ddl elastic run`, this process takes part in the training, and the model is
        returned in each worker.

        on_progress  called in this process with `report()` up to ten times a second; not in a
                     worker of `ddl elastic run`
        """
        if joining.is_worker():
            return self._take_part()
        for adapter in loaded_adapters():
            adapter.preload()
        secret = secrets.token_hex()
        traces = timeline.make_folder(self._trace)

        def work(spec: AgentSpec, channel: JobChannel) -> None:
            # Use a new thread: after a fork the main thread's OpenMP pool has lost its threads, and
            # the next parallel region would wait for them.
            leave_when_asked()
            own = (spec, channel, self._options, secret, self._make, self._reading, traces)
            ThreadPoolExecutor(1).submit(trainer.work, *own).result()

        with (
            LocalEngine(work, self._size.most, self._constants.threads) as engine,
            Progress(self._steps, shown=self._progress, on_step=on_progress) as progress,
        ):
            job = self._job = Coordinator(engine, self._size, self._constants.threads, progress)
            state = job.run(lambda: training.fetch(job))
        if self._trace and traces:
            job.write_trace(Path(self._trace), traces)
        return self._restore(state)

    def _take_part(self) -> Any:
        framework = self._make()
        joined, began = joining.join(), time.monotonic()
        loop = trainer.make_loop(framework, self._reading, **joined, **self._options)
        trainer.train(loop, self._reading)
        self._is_writer = loop.is_writer
        self._part = {
            "state": "done",
            "steps": self._steps,
            "steps_total": self._steps,
            "loss": framework.loss,
            "workers": {member: {"state": "done"} for member in loop.group.members},
            "events": [],
            "recomputed": joined["reporter"].recomputed,
            "seconds": time.monotonic() - began,
            "hash": digest(framework.state()),
        }
        return framework.model

    @property
    def is_writer(self) -> bool:
        """True in the one process that should print and write files after `train`: the process that
        called `train`, or one of the workers of `ddl elastic run`."""
        return self._is_writer

    def resize(self, workers: int) -> None:
        """Change the number of workers within the limits of the `workers` argument. Call this from
        any thread while `train` runs; it returns at once. Workers join and leave between two steps,
        and no other worker restarts. Raises ValueError if the number is outside these limits, and
        RuntimeError if `train` does not run."""
        if self._job is None:
            raise RuntimeError("the job does not train: call resize while train runs")
        self._job.registry.resize(workers)

    def report(self) -> dict[str, Any]:
        """Return the state of the job, as a dictionary with the keys below.

        state       the name of the state, such as "not started"
        steps       the number of committed steps
        steps_total  the number of all steps
        loss        the loss of the last step
        samples_per_second  the mean over the last 10 s
        seconds_per_step  the mean over the last 10 s
        workers     the workers by number, with their states, process ids and speeds
        events      the events, such as deaths and recoveries
        audited     the number of shares computed again, for audits and to check joining workers
        mismatches  the number of differences that these computations have found
        recomputed  the number of shares that were computed again after deaths
        seconds     the seconds since the start
        hash        the hash of the final state, after the end

        A worker of `ddl elastic run` returns some of these keys, after the end.
        """
        if self._part:
            return dict(self._part)
        return self._job.report() if self._job else {"state": "not started"}

    def _make(self) -> Framework:
        """Make the initial model, optimizer and schedule, which are equal on all workers."""
        for adapter in loaded_adapters():
            adapter.pin(self._constants.threads)
            adapter.seed(model_seed(self._constants.seed))
        framework = self._make_framework()
        if self._local_steps is not None:
            if not isinstance(framework, LocalFramework):
                raise TypeError("local_steps is supported with PyTorch and JAX only")
            framework.set_outer(self._make_outer(framework), self._moments, self._wire)
        if self._clip_norm is not None and not hasattr(framework, "clipping"):
            raise TypeError("clip_norm is supported with PyTorch only")
        return framework

    def _make_outer(self, framework: LocalFramework) -> Any:
        return self._outer(framework.model.parameters()) if self._outer else None

    def _make_framework(self) -> Framework:
        model = self._model()
        if not hasattr(model, "parameters"):
            adapter: Any = find_adapter(model)
            raise TypeError(
                f"model is a {type(model).__qualname__}, which has no parameters(); to train it,"
                f" see the module {adapter.__name__}"
            )
        optimizer = self._optimizer(model.parameters())
        made: Framework = find_adapter(model).Adapter(
            model,
            optimizer,
            self._loss,
            self._schedule,
            buffers=self._buffers,
            clip_norm=self._clip_norm,
        )
        return made

    def _restore(self, state: State) -> Any:
        """Make a model in this process, and load the final state into it."""
        framework = self._make()
        framework.load(state)
        return framework.model


def choose_workers(workers: int | str, logical: int, places: int) -> int:
    """Return the number of workers to start. This is the largest useful number within the requested
    range and the number of slots, `places`, but at least the minimum of the range. Raises
    ValueError."""
    low, high = parse_workers(workers)
    if low > logical:
        raise ValueError(f"workers is {workers!r}, more than the {logical} logical workers")
    return max(size for size in (low, *legal_sizes(logical)) if size <= max(low, min(high, places)))


def parse_workers(workers: int | str) -> tuple[int, int]:
    """Parse a number of workers or "least:most" into the two limits. Raises ValueError."""
    least, _, most = str(workers).partition(":")
    try:
        low, high = int(least), int(most or least)
    except ValueError:
        low, high = 0, 0
    if not 1 <= low <= high:
        raise ValueError(
            f'workers is {workers!r}; must be a number, or "least:most", such as "1:16"'
        )
    return low, high
