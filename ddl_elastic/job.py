"""A job without a loop of one's own: `Job(...).train()`."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from ddl_elastic import environment, worker
from ddl_elastic.assign import legal_sizes
from ddl_elastic.coordinator import Coordinator
from ddl_elastic.engines import AgentSpec
from ddl_elastic.engines.local import LocalEngine
from ddl_elastic.framework import Framework, find_half, loaded_halves
from ddl_elastic.loading import Collate, Dataset, Stream, count_samples, count_steps
from ddl_elastic.messages import Channel
from ddl_elastic.progress import Progress
from ddl_elastic.sampler import Sampler, model_seed
from ddl_elastic.worker import Constants


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

    The result does not depend on these:
    workers    processes: a number, or "least:most", and then as many as there are cores for
    loader_workers  processes that read ahead for each worker; 0: each reads its samples itself
    progress   whether to show a bar and the events on stderr
    """

    def __init__(
        self,
        *,
        model: Callable[[], Any],
        data: Dataset | Stream,
        loss: Callable[..., Any],
        optimizer: Callable[..., Any],
        schedule: Callable[..., Any] | None = None,
        collate: Collate | None = None,
        batch: int,
        logical: int,
        workers: int | str = "1:4096",
        loader_workers: int = 0,
        passes: int | None = None,
        steps: int | None = None,
        seed: int = 0,
        threads: int = 1,
        progress: bool = True,
    ) -> None:
        self._constants = Constants(batch, logical, seed, threads)
        self._steps = count_steps(Sampler(count_samples(data), batch, logical, seed), passes, steps)
        self._reading: dict[str, Any] = {
            "data": data,
            "steps": self._steps,
            "loader_workers": loader_workers,
            "collate": collate,
        }
        self._workers = choose_workers(workers, logical, environment.cores() // threads)
        self._model = model
        self._loss, self._optimizer, self._schedule = loss, optimizer, schedule
        self._progress = progress
        self._job: Coordinator | None = None

    def train(self, on_progress: Callable[[dict[str, Any]], None] | None = None) -> Any:
        """Train; returns the trained model. On this machine, in processes forked from this one.

        A worker that dies is not replaced: the others go on. Raises JobFailed when none is left.

        on_progress: called in this process with `report()`, up to ten times a second
        """
        for half in loaded_halves():
            half.preload()
        constants, secret = self._constants, secrets.token_hex()

        def work(spec: AgentSpec, channel: Channel) -> None:
            worker.work(spec, channel, constants, secret, self._make, self._reading)

        def show_step(committed: int, loss: float) -> None:
            progress.step(committed, loss)
            if on_progress:
                on_progress(self.report())

        with (
            LocalEngine(work, self._workers, constants.threads) as engine,
            Progress(self._steps, shown=self._progress) as progress,
        ):
            self._job = Coordinator(engine, self._workers, constants.threads, constants.logical)
            state = self._job.run(show_step, progress.line)
        framework = self._make()
        framework.load(state)
        return framework.model

    def report(self) -> dict[str, Any]:
        """How it goes: `state`, `steps` that are committed, `loss` of the last one, `workers` by
        number with their states and process ids, `events` (deaths and recoveries), `recomputed`
        shares, `seconds`, and at the end `hash`, of the final state."""
        return self._job.report() if self._job else {"state": "not started"}

    def _make(self) -> Framework:
        """The model, its optimizer and schedule, as every worker starts with them."""
        for half in loaded_halves():
            half.pin(self._constants.threads)
            half.seed(model_seed(self._constants.seed))
        model = self._model()
        made: Framework = find_half(model).Half(
            model, self._optimizer(model.parameters()), self._loss, self._schedule
        )
        return made


def choose_workers(workers: int | str, logical: int, places: int) -> int:
    """How many to start: the number that is asked for, or the most that are of use and have a
    place. Raises ValueError."""
    least, _, most = str(workers).partition(":")
    try:
        low, high = int(least), int(most or least)
    except ValueError:
        low, high = 0, 0
    if not 1 <= low <= high:
        raise ValueError(f'workers is {workers!r}; it is a number, or "least:most", as in "1:16"')
    if low > logical:
        raise ValueError(f"workers is {workers!r}, more than the {logical} logical workers")
    return max(size for size in (low, *legal_sizes(logical)) if size <= max(low, min(high, places)))
