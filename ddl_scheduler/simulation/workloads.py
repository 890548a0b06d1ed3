# SPDX-License-Identifier: Apache-2.0
"""Generated workloads that resemble published ones: AdaptDL's, which samples the Philly trace.

160 jobs arrive within eight hours, three quarters of them small. The classes are those of the
Pollux paper (OSDI'21), by slot-hours: small below 1, medium below 10, large below 100, extra large.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from ddl_scheduler.planning.model import StepModel

SPAN = 8 * 3600.0
# The policy was tuned with the first seeds. Its goals are tested with the second.
TUNING_SEEDS = (0, 1, 2, 3, 4)
TEST_SEEDS = (101, 102, 103, 104, 105)

# For each class: the share of the jobs, the least and most slot-hours, the logical workers, and the
# sizes that users request from schedulers without elastic jobs.
_CLASSES = (
    (0.72, 0.02, 1.0, 16, (1, 1, 2, 4, 8)),
    (0.20, 1.0, 10.0, 32, (1, 1, 2, 4, 8)),
    (0.065, 10.0, 60.0, 64, (8, 16, 16, 32)),
    (0.015, 60.0, 200.0, 64, (8, 16, 16, 32)),
)
_SHARE = 0.25  # seconds of one share


@dataclass(frozen=True)
class Submission:
    """A job of a workload."""

    name: str
    arrival: float
    model: StepModel  # its true speed
    steps: float
    asked: int  # ranks, for methods with a fixed number
    tenant: str = "all"
    tier: int = 0

    @property
    def work(self) -> float:
        """The job's seconds on one slot."""
        return self.steps * self.model.seconds(1)


def submission_make(
    name: str, arrival: float, work: float, shares: int, asked: int, source: random.Random
) -> Submission:
    """Return a job of `work` seconds on one slot. The exchange between ranks takes 1 to 6 % of a
    step on eight ranks, and more on more ranks or hosts."""
    alone = shares * _SHARE
    sync = alone * source.uniform(0.01, 0.06) / 8
    model = StepModel(shares, _SHARE, sync, sync / 6, sync * source.uniform(0, 0.5), measured=True)
    return Submission(name, arrival, model, work / alone, asked)


def shares_choose(work: float, asked: int) -> int:
    """Return the number of logical workers for a job of this work, at least `asked`."""
    usual = next((kind[3] for kind in _CLASSES if work < kind[2] * 3600), _CLASSES[-1][3])
    return max(usual, 1 << (asked - 1).bit_length())


def workload_make(seed: int, count: int = 160, load: float = 1.0) -> list[Submission]:
    """Generate `count` jobs, ordered by arrival. `load` multiplies their work."""
    source = random.Random(seed)
    jobs = []
    for number in range(count):
        (chosen,) = source.choices(_CLASSES, [kind[0] for kind in _CLASSES])
        _, low, high, shares, asked = chosen
        work = math.exp(source.uniform(math.log(low), math.log(high))) * 3600 * load
        arrival = min(source.uniform(0, SPAN), source.uniform(0, 0.8 * SPAN))
        fixed = source.choice(asked)
        jobs.append(submission_make(f"job-{number}", arrival, work, shares, fixed, source))
    return sorted(jobs, key=lambda job: job.arrival)
