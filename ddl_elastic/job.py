# SPDX-License-Identifier: Apache-2.0
"""A job without a loop of one's own: `Job(...).train()`."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ddl_elastic.base import environment, timeline
from ddl_elastic.base.audits import find_options
from ddl_elastic.base.messages import Channel
from ddl_elastic.coordinator import training
from ddl_elastic.coordinator.coordinator import Coordinator
from ddl_elastic.coordinator.progress import Progress
from ddl_elastic.coordinator.worker_registry import Size
from ddl_elastic.engines import AgentSpec
from ddl_elastic.engines.local import LocalEngine
from ddl_elastic.frameworks.protocol import Framework, State, digest, find_adapter, loaded_adapters
from ddl_elastic.shares.assign import legal_sizes
from ddl_elastic.shares.loading import Collate, Dataset, SampleStream, count_samples, count_steps
from ddl_elastic.shares.sampler import Sampler, model_seed
from ddl_elastic.step.membership import leave_when_asked
from ddl_elastic.step.watchdog import Watchdog
from ddl_elastic.storage.saving import policy_find
from ddl_elastic.worker import joining, trainer
from ddl_elastic.worker.loop import WATCHDOG, Loop
from ddl_elastic.worker.trainer import Constants


class Job:
    """Elastic training of one model.

    model      makes the model: a function or class without arguments. Its module's framework is
               imported before `train`
    data       the samples: has a length, and gives (input, target) by number; or a stream of them,
               which has seek(position) and gives them by `next`
    loss       of the model's outputs and the targets of a share: their mean, or (sum, weight)
    collate    makes a batch of a share's samples; None: as the framework does
    optimizer  makes the optimizer, of the model's parameters
    schedule   makes the learning rate schedule, of the optimizer; it advances after each step

    Constants, on which the result depends:
    batch      samples of a step, of all logical workers together
    logical    logical workers: the shares of a step, at least as many as there will be workers
    passes     over the data, one by default
    steps      instead of passes; a stream needs it
    seed       of the initial model, the samples' order, and all that is random
    threads    of the framework in each worker
    buffers    what is committed of the model's buffers, such as batch norm's statistics: "average",
               of how the shares change them, or "first": as logical worker 0's share leaves them

    The result does not depend on these:
    workers    processes: a number, or "least:most", and then as many as there are cores for
    replace    whether a worker that died is replaced by a new one, which the others send the state
    loader_workers  processes that read ahead for each worker; 0: each reads its samples itself
    watchdog   seconds that the others wait for a worker that hangs, before it is killed: at least
               5 usual steps, and in the first step 10 times as long; 0: forever
    checkpoint  a folder for checkpoints, or s3://bucket/prefix, also from which a job that has
               ended goes on
    every      steps between two checkpoints; one more is written at the end
    keep       the newest so many checkpoints
    audit      fraction of shares that a second worker computes again, such as 0.01, to find
               machines that compute wrongly; 0: none. None: as `ddl elastic run --audit` says
    audit_action  what follows if committed steps may be wrong: "rollback" to a checkpoint before
               them, "continue" with them, or "stop"
    progress   whether to show a bar and the events on stderr
    trace      the file for a timeline of the operations, with recoveries marked, for Perfetto
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
        seed: int = 0,
        threads: int = 1,
        buffers: str = "average",
        watchdog: float = WATCHDOG,
        checkpoint: str | None = None,
        every: int = 100,
        keep: int = 3,
        audit: float | None = None,
        audit_action: str | None = None,
        progress: bool = True,
        trace: str | None = None,
    ) -> None:
        self._constants = Constants(batch, logical, seed, threads)
        self._steps = count_steps(Sampler(count_samples(data), batch, logical, seed), passes, steps)
        self._reading: dict[str, Any] = {
            "data": data,
            "steps": self._steps,
            "loader_workers": loader_workers,
            "collate": collate,
        }
        places = environment.cores() // threads
        least, most = parse_workers(workers)
        target = choose_workers(workers, logical, places)
        self._size = Size(target, least, max(target, min(most, logical)), replace)
        self._model = model
        self._loss, self._optimizer, self._schedule = loss, optimizer, schedule
        self._buffers, self._watchdog = buffers, Watchdog(watchdog).seconds
        self._audit = find_options(audit, audit_action)
        self._policy = policy_find(checkpoint, every, keep)
        self._progress, self._trace = progress, trace
        self._job: Coordinator | None = None
        self._part: dict[str, Any] = {}  # of the report: what a worker knows itself
        self._is_writer = True

    def train(self, on_progress: Callable[[dict[str, Any]], None] | None = None) -> Any:
        """Train; returns the trained model. On this machine, in processes forked from this one.

        When a worker dies, the others go on. Raises JobFailed when none is left that has the state.

        In a worker of `ddl elastic run`, this process trains together with the others, and each of
        them returns the model.

        on_progress: called in this process with `report()`, up to ten times a second; not in a
        worker
        """
        if joining.is_worker():
            return self._take_part()
        for adapter in loaded_adapters():
            adapter.preload()
        constants, secret = self._constants, secrets.token_hex()
        traces = timeline.make_folder(self._trace)

        def work(spec: AgentSpec, channel: Channel) -> None:
            # In a thread of its own: a fork leaves the main thread's OpenMP pool without its
            # threads, and the next parallel region would wait for them.
            leave_when_asked()
            own = (spec, channel, constants, secret, self._make, self._reading)
            more = (self._watchdog, traces, self._policy, self._audit)
            ThreadPoolExecutor(1).submit(trainer.work, *own, *more).result()

        with (
            LocalEngine(work, self._size.most, constants.threads) as engine,
            Progress(self._steps, shown=self._progress, on_step=on_progress) as progress,
        ):
            job = self._job = Coordinator(engine, self._size, constants.threads, progress)
            state = job.run(lambda: training.fetch(job))
        if self._trace and traces:
            job.write_trace(Path(self._trace), traces)
        return self._restore(state)

    def _take_part(self) -> Any:
        framework, constants = self._make(), self._constants
        joined, began = joining.join(), time.monotonic()
        loop = Loop(
            framework,
            **joined,
            batch=constants.batch,
            logical=constants.logical,
            seed=constants.seed,
            watchdog=self._watchdog,
            policy=self._policy,
            audit=self._audit[0],
            audit_action=self._audit[1],
        )
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
        """Whether this process is the one to print and to write files, once `train` has returned.
        One is: that which has called `train`, or one of the workers of `ddl elastic run`."""
        return self._is_writer

    def resize(self, workers: int) -> None:
        """Have so many workers from now on, within `workers`. While `train` runs, from any thread;
        returns at once. Those who join and leave do so between two steps; nobody else restarts.
        Raises ValueError."""
        if self._job is None:
            raise RuntimeError("the job does not train: call resize while train runs")
        self._job.registry.resize(workers)

    def report(self) -> dict[str, Any]:
        """How it goes: `state`, `steps` of `steps_total` that are committed, the last one's `loss`,
        `samples_per_second` and `seconds_per_step` (of the last 10 s), `workers` by number with
        their states, process ids and speeds, `events` (deaths and recoveries), `recomputed` shares,
        `seconds`, and at the end `hash`, of the final state. A worker of `ddl elastic run` knows a
        part of it, after the end."""
        if self._part:
            return dict(self._part)
        return self._job.report() if self._job else {"state": "not started"}

    def _make(self) -> Framework:
        """The model, its optimizer and schedule, as every worker starts with them."""
        for adapter in loaded_adapters():
            adapter.pin(self._constants.threads)
            adapter.seed(model_seed(self._constants.seed))
        return self._make_framework()

    def _make_framework(self) -> Framework:
        model = self._model()
        if not hasattr(model, "parameters"):
            adapter: Any = find_adapter(model)
            raise TypeError(
                f"model is a {type(model).__qualname__}; for its framework see {adapter.__name__}"
            )
        optimizer = self._optimizer(model.parameters())
        made: Framework = find_adapter(model).Half(
            model, optimizer, self._loss, self._schedule, buffers=self._buffers
        )
        return made

    def _restore(self, state: State) -> Any:
        """The model in this process, which is what `train` returns."""
        framework = self._make()
        framework.load(state)
        return framework.model


def choose_workers(workers: int | str, logical: int, places: int) -> int:
    """How many to start: the number that is asked for, or the most that are of use and have a
    place. Raises ValueError."""
    low, high = parse_workers(workers)
    if low > logical:
        raise ValueError(f"workers is {workers!r}, more than the {logical} logical workers")
    return max(size for size in (low, *legal_sizes(logical)) if size <= max(low, min(high, places)))


def parse_workers(workers: int | str) -> tuple[int, int]:
    """The least and the most that are asked for. Raises ValueError."""
    least, _, most = str(workers).partition(":")
    try:
        low, high = int(least), int(most or least)
    except ValueError:
        low, high = 0, 0
    if not 1 <= low <= high:
        raise ValueError(f'workers is {workers!r}; it is a number, or "least:most", as in "1:16"')
    return low, high
