# SPDX-License-Identifier: Apache-2.0
"""Rounds of local steps (DiLoCo): `for round in loop.rounds(...)`.

A round is a step of the job. The share of a logical worker is a run of local steps from the
committed state, and the gradient of the share is the difference between the parameters before and
after the run. Sums, votes, recovery, joins and checkpoints are therefore the same as for a step. At
the end, an outer optimizer applies the average of the differences to the committed parameters.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

from ddl_elastic.frameworks.protocol import LocalFramework
from ddl_elastic.shares.loading import Collate, Dataset, Loader, SampleStream, count_steps
from ddl_elastic.shares.sampler import share_seed
from ddl_elastic.worker.elastic_step import ElasticStep
from ddl_elastic.worker.loop import Loop, MakeStep, _Source

REFERENCE = 2  # local steps of the reference share, with which ranks compare their bits


class RoundsLoop(Loop):
    """A loop whose framework can train in rounds of local steps."""

    framework: LocalFramework

    def _start(
        self, source: _Source, number: int, make_step: MakeStep, frame: FrameType
    ) -> Iterator[Any]:
        self.framework.set_local(make_step is not ElasticStep)
        self.group.watch.watchdog.expect(0)  # see ElasticRound
        return super()._start(source, number, make_step, frame)

    def start_rounds(
        self,
        data: Dataset | SampleStream,
        passes: int | None = None,
        *,
        local_steps: int,
        wire: str | None = None,
        steps: int | None,
        loader_workers: int,
        collate: Collate | None,
    ) -> Iterator[ElasticRound]:
        """Yield rounds. See ddl_torch.elastic.Job.rounds, which calls this."""
        if local_steps < 1:
            raise ValueError(f"local_steps is {local_steps}; must be at least 1")
        sampler = self._sample(data, local_steps)
        number = count_steps(sampler, passes, steps, "rounds")
        self._settings = {"local_steps": local_steps, "wire": None if wire == "f32" else wire}

        def owned(step: int) -> Collection[int]:
            return LocalShares(frozenset(self._owned(step)), local_steps)

        source = _Source(data, sampler, owned, loader_workers, collate)
        make = partial(ElasticRound, local_steps=local_steps)
        return self._start(source, number, make, sys._getframe(2))


@dataclass(frozen=True)
class LocalShares(Collection[int]):
    """The numbers of the local steps that these workers take in a round. Worker w takes the numbers
    from w * steps to w * steps + steps - 1."""

    workers: frozenset[int]
    steps: int

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and number // self.steps in self.workers

    def __iter__(self) -> Iterator[int]:
        for worker in sorted(self.workers):
            yield from range(worker * self.steps, (worker + 1) * self.steps)

    def __len__(self) -> int:
        return len(self.workers) * self.steps


class ElasticRound(ElasticStep):
    """One round of a loop. Iterating over it yields, for each of this process's logical workers,
    the batches of its local steps."""

    def __init__(
        self, loop: RoundsLoop, number: int, loader: Loader, stop: int, local_steps: int
    ) -> None:
        super().__init__(loop, number, loader, stop)
        self._framework, self._local_steps = loop.framework, local_steps
        self._taken = 0  # batches of the current share
        self._done = 0  # local steps of the current share

    @property
    def local_step(self) -> int:
        """The round's number times local_steps, plus the number of the local step in the round."""
        return self.number * self._local_steps + max(0, self._taken - 1)

    def _share(self, worker: int, read: Callable[[int], Any]) -> Iterator[Any]:
        """Yield the batches of a worker's local steps."""
        loop, began = self._loop, time.monotonic()
        if self._step and loop.recorder:
            loop.recorder.begin_share(self.number, worker)
        self._framework.begin(worker)
        self._framework.begin_local()
        self.worker, self._computed = worker, None
        self._taken = self._done = 0
        steps = self._local_steps if self._step else min(self._local_steps, REFERENCE)
        yield self._batches(worker, read, steps)
        self._check(steps, steps)
        self._compute(lambda _: self._framework.end_local())
        # Another rank may need this time for each of its shares.
        shares = -(-loop.logical // loop.group.comm.size)
        loop.group.watch.watchdog.expect((time.monotonic() - began) * shares)

    def _batches(self, worker: int, read: Callable[[int], Any], steps: int) -> Iterator[Any]:
        loop = self._loop
        for step in range(steps):
            self._check(step, steps)
            number = worker * self._local_steps + step
            batch = read(number)
            if self._step and loop.recorder:
                loop.recorder.read(batch)
            self._framework.seed(share_seed(loop.seed, self.number, number))
            self._taken += 1
            yield batch

    def _check(self, step: int, steps: int) -> None:
        """Raise RuntimeError unless `step` of the share's `steps` local steps have been taken."""
        if self._done != step or self._taken != step:
            raise RuntimeError(
                f"logical worker {self.worker} has taken {self._done} of {steps} local steps in"
                f" round {self.number}: iterate over its batches to the end, and call"
                " round.backward(loss) once for each of them"
            )

    def backward(self, loss: Any, weight: Any = 1.0) -> None:
        """Compute the gradients of a local step, which the optimizer then applies. Replaces
        loss.backward(). The gradients of earlier steps are cleared.

        weight  the number of terms if the loss is a sum
        """
        self._framework.backward_local(loss, weight)
        self._done += 1

    def run(self, batch: Any) -> None:
        """Take a local step in a job without a custom loop."""
        self._framework.run_local(batch)
        self._done += 1

    def _apply(self) -> None:
        super()._apply()
        self._framework.step_outer()
