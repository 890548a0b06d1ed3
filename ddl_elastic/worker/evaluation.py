# SPDX-License-Identifier: Apache-2.0
"""The evaluation of a model on all ranks: a table with one row of numbers for each batch.

The table is an ordered sum. Each logical worker adds its own rows and zeros elsewhere, so the sum
is exact. Recovery from a death works as in a training step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ddl_elastic.frameworks.protocol import Array, Framework
from ddl_elastic.shares.loading import Loader
from ddl_elastic.shares.sampler import SampleShare, evaluation_seed
from ddl_elastic.step.step import RankGroup

Table = npt.NDArray[np.float64]
NONE = -1  # in place of a step

# Returns the sum of compute(worker) over all logical workers, in arrays like the given ones.
Agree = Callable[[Callable[[int], Sequence[Array]], list[Array], str], list[Array]]


@dataclass(frozen=True)
class EvaluationPlan:
    """The assignment of samples to batches, and of batches to workers. Raises ValueError if
    `samples` or `batch` is less than 1."""

    samples: int
    batch: int
    workers: int

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError(f"the data set has {self.samples} samples; at least 1 is needed")
        if self.batch < 1:
            raise ValueError(f"batch is {self.batch}; it must be at least 1")

    @property
    def count(self) -> int:
        """The number of batches; the last one may be smaller."""
        return -(-self.samples // self.batch)

    def batches(self, workers: Iterable[int]) -> list[int]:
        """Return the batches that these logical workers evaluate, in order."""
        count = self.count
        return [
            batch
            for worker in sorted(workers)
            for batch in range(worker * count // self.workers, (worker + 1) * count // self.workers)
        ]

    def share(self, _step: int, batch: int) -> SampleShare:
        """Return the samples of a batch."""
        indices = np.arange(batch * self.batch, min((batch + 1) * self.batch, self.samples))
        return SampleShare(np.zeros_like(indices), indices)


class EvaluationHistory:
    """The tables of past evaluations, kept for joining workers whose programs reach the same
    evaluations later.

    Such a program executes the first step of the first call of `steps` and skips all other steps
    that it has missed. It also executes the code after that step and between the calls, and finally
    the code at the top of the step in which it joins.

    tables   the tables from such code, without the last one
    head     the tables since the program began the current step
    is_open  True while the program executes the code after the first step or between the calls
    """

    def __init__(self) -> None:
        self.tables: list[Table] = []
        self.head: list[Table] = []
        self._taken = 0
        self.is_open = False
        self._first = NONE, 0  # the first step, and the number of tables before it

    def open(self, step: int) -> None:
        """Keep the tables of this step, which is the first one that joining workers execute, or of
        one that a resumed job undoes (NONE)."""
        self.is_open, self._first = True, (step, len(self.tables))

    def begin(self, step: int) -> None:
        """Begin a step. If the job repeats the first step, keep its tables again."""
        self.is_open = self.is_open or step == self._first[0]

    def return_to(self, step: int) -> None:
        """Drop the tables of the first step if the job returns to it."""
        first, count = self._first
        if step == first:
            del self.tables[count:]

    def keep(self, table: Table) -> None:
        """Keep the table of an evaluation if a joining worker's program needs it."""
        (self.tables if self.is_open else self.head).append(table)

    def take(self) -> Table:
        """Return the next table, on a rank that has missed its evaluation."""
        known = [*self.tables, *self.head]
        self._taken += 1
        if self._taken > len(known):
            raise RuntimeError(
                "the other ranks have evaluated nothing at this point, so this process cannot"
                " join them"
            )
        return known[self._taken - 1]


def run(
    framework: Framework,
    plan: EvaluationPlan,
    loader: Loader,
    function: Callable[[Any], Any],
    seed: int,
    group: RankGroup,
    agree: Agree | None,
    expect: Callable[[float], None],
) -> Table:
    """Return the numbers that function(batch) returns, one row for each batch. All ranks call it.

    agree   None to return a table of NaN of the same size, without an operation
    expect  called with the seconds that this rank would need for all batches
    """
    began, evaluated = time.monotonic(), 0

    def evaluate(batch: int) -> list[float]:
        nonlocal evaluated
        samples = loader.take(0, batch)
        framework.seed(evaluation_seed(seed, batch))
        numbers = as_numbers(function(samples))
        evaluated += 1
        expect((time.monotonic() - began) / evaluated * plan.count)
        return numbers

    def fill(worker: int) -> list[Array]:
        table = np.zeros((plan.count, width))
        for batch in plan.batches([worker]):
            row = known.pop(batch, None) or evaluate(batch)
            if len(row) != width:
                raise ValueError(
                    f"the function returned {len(row)} numbers for batch {batch}, and {width} for"
                    f" batch {first}"
                )
            table[batch] = row
        return [table.reshape(-1)]

    with framework.evaluating():
        # The first batch shows how many numbers the function returns.
        first = next(iter(plan.batches(group.owned)), 0)
        known = {first: evaluate(first)}
        width = len(known[first])
        if not width:
            raise ValueError(f"the function returned no numbers for batch {first}")
        table: Array = np.full(plan.count * width, np.nan)
        if agree:
            (table,) = agree(fill, [table], "sum")
    # Seed the generators, so that the program's next random numbers are the same on all ranks.
    framework.seed(evaluation_seed(seed, plan.count))
    return table.reshape(plan.count, width)


def as_numbers(given: Any) -> list[float]:
    """Return a list of numbers from one number or an iterable (Python, NumPy or a framework)."""
    try:
        each = iter(given)
    except TypeError:
        return [float(given)]
    return [float(number) for number in each]
