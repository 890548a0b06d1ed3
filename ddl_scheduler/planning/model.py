# SPDX-License-Identifier: Apache-2.0
"""The time of a step on W ranks, fitted to measurements, and the legal sizes of a job. Pure.

A step of V shares takes t(W) = a ceil(V/W) + s(W). The first term is the time of the busiest rank's
shares, one after the other. s(W) is the part of the communication that does not overlap with them.
s(1) = 0. For more ranks, s(W) is a constant, plus a part for each doubling, plus a part if the
ranks are on several hosts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ddl_elastic.shares.assign import legal_sizes

# How strongly the base, a doubling and the link between hosts are assumed to cost nothing until
# measurements show otherwise. A measurement across hosts does not show the time within a host.
_PRIOR = np.diag([0.0, 0.01, 0.01, 0.001])[1:]
_SHARE = 0.1  # the weight of measured shares compared with that of measured steps
_ROUNDS = 3  # rounds of reweighting the measurements
_USUAL = 0.05  # measurements with a larger relative error get less weight
_SUPPORTS = tuple((0, *(i for i in (1, 2, 3) if bits >> (i - 1) & 1)) for bits in range(8))

_legal_sizes = lru_cache(maxsize=1024)(legal_sizes)


@dataclass(frozen=True)
class StepTiming:
    """A measurement: the seconds of a step on `size` ranks on `hosts` hosts, and the seconds of one
    `share` (0 if unknown)."""

    size: int
    hosts: int
    seconds: float
    share: float = 0.0


@dataclass(frozen=True)
class StepModel:
    """A model of the time of a step as a function of the number of ranks."""

    shares: int  # V
    share: float = 1.0  # seconds of one share
    base: float = 0.0  # seconds of the exchange, if there is more than one rank
    doubling: float = 0.0  # additional seconds for each doubling of the ranks
    across: float = 0.0  # additional seconds if the ranks are on several hosts
    measured: bool = False  # whether `share` is in seconds

    def seconds(self, size: int, hosts: int = 1) -> float:
        """Return t(W), the seconds of a step."""
        exchange = self.base + self.doubling * math.log2(size) + self.across * (hosts > 1)
        return self.share * -(-self.shares // size) + (exchange if size > 1 else 0.0)

    def speedup(self, size: int, hosts: int = 1) -> float:
        """Return the speed compared with the speed of one rank. 0 ranks have speed 0."""
        return self.seconds(1) / self.seconds(size, hosts) if size else 0.0


@dataclass(frozen=True)
class MemoryModel:
    """The bytes that a rank needs: `fixed`, and `gradient` for each partial gradient."""

    fixed: int
    gradient: int

    def fits(self, shares: int, size: int, limit: int) -> bool:
        """Return True if ranks of `limit` bytes can train. A rank keeps at most one partial
        gradient for each power of two up to its number of shares, and the result."""
        partial = (-(-shares // size)).bit_length()
        return self.fixed + (partial + 1) * self.gradient <= limit


def sizes_list(
    shares: int, least: int, most: int, memory: MemoryModel | None = None, limit: int = 0
) -> tuple[int, ...]:
    """Return the numbers of ranks that a job may have, ascending.

    These are its minimum, and each number up to its maximum with which the busiest rank computes
    fewer shares than with one rank less. A `limit` of 0 bytes means that the memory of a rank is
    unknown.
    """
    low = max(1, least)
    legal = sorted({low, *(size for size in _legal_sizes(shares) if size > low)})
    return tuple(
        size
        for size in legal
        if size <= min(most, shares)
        and (not memory or not limit or memory.fits(shares, size, limit))
    )


def model_fit(shares: int, reports: Sequence[StepTiming]) -> StepModel:
    """Return the model that fits best: least squares of the relative errors, with no negative part.

    For each size, the median of its reports counts. A size that does not fit the others gets less
    weight. If only one size was measured, the seconds of a share show which part of a step is the
    exchange. Unmeasured parts are assumed to cost nothing, so that larger sizes are tried and
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
    """Return the non-negative least-squares solution. It is the unconstrained solution for one of
    the eight sets of numbers that may differ from 0, so all eight are tried."""
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
    """Predict when `steps` more steps end. Infinity if nothing was measured or no rank runs."""
    if not model.measured or not size:
        return math.inf
    return now + steps * model.seconds(size, hosts)
