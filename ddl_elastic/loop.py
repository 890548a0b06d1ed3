"""The training loop of a program of one's own: `for step in loop.steps(...)`, `for x, y in step`.

Iterating over a step computes this process's shares of it, and is the recovery as well: it ends
when the step is agreed on, and after a death it yields the adopted shares.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Protocol

from ddl_core import Comm
from ddl_elastic.assign import assign
from ddl_elastic.framework import Array, Framework, digest
from ddl_elastic.reform import Watch
from ddl_elastic.reporter import Reporter
from ddl_elastic.sampler import Sampler, sample_seed, share_seed
from ddl_elastic.step import Group, Phase, Recovery, Step, finish
from ddl_elastic.watchdog import Watchdog

WATCHDOG = 10.0  # seconds, the default


class Dataset(Protocol):
    """A data set with samples by number, as lists and PyTorch's map-style data sets are."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


# From a step, the number of ranks and that of logical workers: by worker, its rank.
Owners = Callable[[int, int, int], Sequence[int]]


@lru_cache
def _even_owners(ranks: int, workers: int) -> Sequence[int]:
    return assign(workers, [1.0] * ranks).owners


def even_owners(_step: int, ranks: int, workers: int) -> Sequence[int]:
    """The same in each step: contiguous ranges, as `assign` makes them for equal speeds."""
    return _even_owners(ranks, workers)


class Loop:
    """A job as one rank sees it.

    comm      of all ranks; the loop replaces it after a death, and closes it in the end
    batch     samples of a step, of all logical workers together
    logical   logical workers, at least as many as there will ever be ranks of use
    seed      of the samples' order and of all generators
    owners    who computes what, in each step
    members   by rank: a number that it keeps when others die; None: its rank
    watchdog  seconds that the others wait for a rank that hangs, see watchdog.py; 0: for ever
    reporter  tells how it goes

    The final state depends on the program, the data, seed, batch and logical.
    """

    def __init__(
        self,
        framework: Framework,
        comm: Comm,
        *,
        batch: int,
        logical: int,
        seed: int = 0,
        owners: Owners = even_owners,
        members: Sequence[int] | None = None,
        watchdog: float = WATCHDOG,
        reporter: Reporter | None = None,
    ) -> None:
        self.framework = framework
        self.batch, self.logical, self.seed = batch, logical, seed
        self.reporter = reporter or Reporter()
        self._owners = owners
        first = tuple(owners(0, comm.size, logical))
        watch = Watch(Watchdog(watchdog))
        self.group = Group(comm, list(members or range(comm.size)), first, watch)
        watch.watchdog.observe(comm)

    @property
    def is_writer(self) -> bool:
        """Whether this process is the one that prints and writes files for all."""
        return self.group.comm.rank == 0

    def steps(self, data: Dataset, passes: int = 1) -> Iterator[ElasticStep]:
        """The steps of so many passes over the data, each to be iterated over to its end."""
        sampler = Sampler(len(data), self.batch, self.logical, self.seed)
        number = sampler.steps(passes)
        self.reporter.begin(number, self.batch, self.logical)
        for t in range(number):
            self.group.watch.watchdog.begin_step()
            # Equal states stay equal, so they are compared once.
            check = 0 if t else int(digest(self.framework.state())[:8], 16)
            step = Step(self.group, t, self.framework.empty(), check)
            yield ElasticStep(self, step, data, sampler)
            if step.phase is not Phase.AGREED:
                raise RuntimeError(f"step {t} is not agreed on: iterate over it to its end")
            if not step.behind:
                ranks = self.group.comm.size
                self.group.owners = tuple(self._owners(t + 1, ranks, self.logical))
            self.reporter.committed(step, self.framework.loss)
        finish(self.group, number)
        self.reporter.done(number, self.framework, self.group.comm)

    def close(self) -> None:
        """Leave the other ranks."""
        self.group.watch.close()
        self.group.comm.close()


class ElasticStep:
    """One step, as the loop's user sees it: iterating gives this process's shares, as batches."""

    def __init__(self, loop: Loop, step: Step, data: Dataset, sampler: Sampler) -> None:
        self._loop, self._step, self._data, self._sampler = loop, step, data, sampler
        self._waits_for_share = False
        self._began = 0.0  # the share
        self.worker = -1  # the logical worker whose share is the last one that was yielded

    @property
    def number(self) -> int:
        """From 0 on, over all passes."""
        return self._step.number

    @property
    def recovery(self) -> Recovery | None:
        """What deaths during this step have cost, if there were any."""
        return self._step.recovery

    def __iter__(self) -> Iterator[Any]:
        framework, seed, number = self._loop.framework, self._loop.seed, self.number
        for worker in self._step.shares():
            self.worker, self._began = worker, time.monotonic()
            batch = framework.collate(self._samples())
            framework.seed(share_seed(seed, number, self.worker))
            framework.begin()
            self._waits_for_share = True
            yield batch
            if self._waits_for_share:
                raise RuntimeError(
                    f"a share of step {number} was not computed: call step.backward(loss) for each"
                    " batch that the step yields"
                )
        # What an optimizer or a schedule draws is the same on all ranks.
        framework.seed(share_seed(seed, number, self._loop.logical))
        framework.apply(self._step.result)

    def _samples(self) -> list[Any]:
        share = self._sampler.share(self.number, self.worker)
        samples = []
        for in_pass, index in zip(share.passes.tolist(), share.indices.tolist(), strict=True):
            self._loop.framework.seed(sample_seed(self._loop.seed, in_pass, index))
            samples.append(self._data[index])
        return samples

    def backward(self, loss: Any) -> None:
        """Instead of loss.backward(): compute the gradients of this share."""
        self.take(self._loop.framework.backward(loss))

    def take(self, share: Sequence[Array]) -> None:
        """Take in what the share computed."""
        if not self._waits_for_share:
            raise RuntimeError("step.backward() is called once for each batch of the step")
        self._waits_for_share = False
        self._step.add(self.worker, share)
        self._loop.reporter.computed(time.monotonic() - self._began)
