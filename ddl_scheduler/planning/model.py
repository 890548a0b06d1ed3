# SPDX-License-Identifier: Apache-2.0
"""How long a step takes on W ranks, fitted from what was measured; which sizes are legal. Pure.

A step of V shares takes t(W) = a ceil(V/W) + s(W): the shares of the busiest rank one after the
other, and what of the exchange is not hidden behind them. s(1) = 0; with more ranks s(W) is a
constant, plus a part for each doubling, plus a part if the ranks are on several hosts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ddl_elastic.shares.assign import legal_sizes

# How strongly the base, a doubling and the way across hosts count as free while nothing else was
# measured. What was measured across hosts only may as well be quick within one.
_PRIOR = np.diag([0.0, 0.01, 0.01, 0.001])[1:]
_SHARE = 0.1  # how strongly the seconds of shares count beside those of steps
_ROUNDS = 3  # of weighing the measurements anew
_USUAL = 0.05  # relative error from which on a measurement weighs less
_SUPPORTS = tuple((0, *(i for i in (1, 2, 3) if bits >> (i - 1) & 1)) for bits in range(8))

_legal_sizes = lru_cache(maxsize=1024)(legal_sizes)


@dataclass(frozen=True)
class StepTiming:
    """Measured: a step took so long on `size` ranks on `hosts` hosts, and one share in it `share`
    seconds; 0: not known."""

    size: int
    hosts: int
    seconds: float
    share: float = 0.0


@dataclass(frozen=True)
class StepModel:
    """The seconds of a step by the number of ranks."""

    shares: int  # V
    share: float = 1.0  # of one share
    base: float = 0.0  # of the exchange, if there is one
    doubling: float = 0.0  # more for each doubling of the ranks
    across: float = 0.0  # more if the ranks are on several hosts
    measured: bool = False  # whether `share` is in seconds

    def seconds(self, size: int, hosts: int = 1) -> float:
        """t(W)."""
        exchange = self.base + self.doubling * math.log2(size) + self.across * (hosts > 1)
        return self.share * -(-self.shares // size) + (exchange if size > 1 else 0.0)

    def speedup(self, size: int, hosts: int = 1) -> float:
        """How many times as fast as one rank; 0 ranks have no speed."""
        return self.seconds(1) / self.seconds(size, hosts) if size else 0.0


@dataclass(frozen=True)
class MemoryModel:
    """Bytes that a rank needs: `fixed` without partial gradients, and for one `gradient`."""

    fixed: int
    gradient: int

    def fits(self, shares: int, size: int, limit: int) -> bool:
        """Whether ranks of `limit` bytes can train. A rank keeps at most one partial gradient for
        each power of two up to its number of shares, and the result."""
        partial = (-(-shares // size)).bit_length()
        return self.fixed + (partial + 1) * self.gradient <= limit


def sizes_list(
    shares: int, least: int, most: int, memory: MemoryModel | None = None, limit: int = 0
) -> tuple[int, ...]:
    """The numbers of ranks that a job may have, ascending: its minimum, and those up to its
    maximum with which the busiest rank computes fewer shares than with one rank less. A `limit` of
    0 bytes says that the memory of a rank is not known."""
    low = max(1, least)
    legal = sorted({low, *(size for size in _legal_sizes(shares) if size > low)})
    return tuple(
        size
        for size in legal
        if size <= min(most, shares)
        and (not memory or not limit or memory.fits(shares, size, limit))
    )


def model_fit(shares: int, reports: Sequence[StepTiming]) -> StepModel:
    """The model that fits best: least squares of the relative errors, with no negative part.

    Of the reports of one size the median counts, and a size that does not fit the others counts
    less. The seconds of shares tell, where one size only was measured, what of its steps is the
    exchange. What was never measured is taken to be free, so that larger sizes are tried and
    measured.
    """
    groups: dict[tuple[int, bool], list[float]] = {}
    for report in reports:
        if report.seconds > 0 and 1 <= report.size <= shares:
            groups.setdefault((report.size, report.hosts > 1), []).append(report.seconds)
    if not groups:
        return StepModel(shares)
    keys = sorted(groups)
    seconds = np.array([float(np.median(groups[key])) for key in keys])
    rows = np.array([_features(shares, size, across) for size, across in keys])
    rows = rows / seconds[:, None]
    prior = _PRIOR / seconds.max()
    goal = np.zeros(3)
    if shares_known := [report.share for report in reports if report.share > 0]:
        prior = np.vstack([prior, _SHARE * np.eye(4)[:1] / float(np.median(shares_known))])
        goal = np.append(goal, _SHARE)
    weights = np.ones(len(keys))
    found = np.zeros(4)
    for _ in range(_ROUNDS):
        found = _solve(np.vstack([rows * weights[:, None], prior]), np.concatenate([weights, goal]))
        errors = np.abs(rows @ found - 1)
        weights = np.sqrt(np.minimum(1.0, _USUAL / np.maximum(errors, 1e-9)))
    share, base, doubling, across = (float(number) for number in found)
    return StepModel(shares, share, base, doubling, across, measured=True)


def _features(shares: int, size: int, across: bool) -> list[float]:
    if size == 1:
        return [float(shares), 0.0, 0.0, 0.0]
    return [float(-(-shares // size)), 1.0, math.log2(size), float(across)]


def _solve(rows: npt.NDArray[np.float64], goal: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The numbers >= 0 with the least squares. They are the plain solution for those of them that
    are not 0, and there are eight choices of these."""
    best, least = np.zeros(4), math.inf
    for support in _SUPPORTS:
        columns = list(support)
        part = np.linalg.lstsq(rows[:, columns], goal, rcond=None)[0]
        if part[0] <= 0 or part.min() < 0:
            continue
        error = float(np.sum((rows[:, columns] @ part - goal) ** 2))
        if error < least - 1e-15:
            best, least = np.zeros(4), error
            best[columns] = part
    return best


def end_predict(model: StepModel, steps: float, size: int, hosts: int, now: float) -> float:
    """When the last of so many steps ends; infinity where nothing was measured or nothing runs."""
    if not model.measured or not size:
        return math.inf
    return now + steps * model.seconds(size, hosts)
