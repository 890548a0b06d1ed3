# SPDX-License-Identifier: Apache-2.0
"""A comparison of scheduling methods over one or several workloads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddl_scheduler.planning.jobs import PolicySlot
from ddl_scheduler.simulation.simulate import Method, Outcome, simulate
from ddl_scheduler.simulation.workloads import Submission


@dataclass(frozen=True)
class Result:
    """A method's results. The numbers are means over the workloads."""

    method: str
    outcomes: Sequence[Outcome]

    @property
    def mean(self) -> float:
        """The mean number of seconds from arrival to completion."""
        return self._over([outcome.mean for outcome in self.outcomes])

    @property
    def p50(self) -> float:
        """The seconds within which half of the jobs are completed."""
        return self._over([outcome.percentile(0.5) for outcome in self.outcomes])

    @property
    def p99(self) -> float:
        """The seconds within which 99 % of the jobs are completed."""
        return self._over([outcome.percentile(0.99) for outcome in self.outcomes])

    @property
    def makespan(self) -> float:
        """The seconds from the first arrival to the last end."""
        return self._over([outcome.makespan for outcome in self.outcomes])

    @property
    def busy(self) -> float:
        """The share of the slots' time in which jobs had them."""
        return self._over([outcome.busy for outcome in self.outcomes])

    @property
    def changes(self) -> float:
        """The number of times that running jobs changed their slots."""
        return self._over([float(outcome.changes) for outcome in self.outcomes])

    @staticmethod
    def _over(numbers: Sequence[float]) -> float:
        return sum(numbers) / len(numbers)


def slots_make(hosts: int, each: int) -> list[PolicySlot]:
    """Return the slots of equal hosts."""
    return [PolicySlot(f"{h}.{s}", f"host{h}") for h in range(hosts) for s in range(each)]


def compare(
    workloads: Sequence[Sequence[Submission]],
    slots: Sequence[PolicySlot],
    methods: Sequence[Method],
) -> list[Result]:
    """Simulate each method with each workload."""
    return [
        Result(method.name, [simulate(jobs, slots, method) for jobs in workloads])
        for method in methods
    ]


def comparison_rows(results: Sequence[Result]) -> list[list[str]]:
    """Return the rows of the table that compares the methods, as texts.

    Times to completion are in minutes, the makespan in hours. The last column has the mean as a
    multiple of the first method's mean.
    """
    head = ["method", "mean", "median", "p99", "makespan", "busy", "changes", "mean / first"]
    return [
        head,
        *(
            [
                result.method,
                f"{result.mean / 60:.1f} min",
                f"{result.p50 / 60:.1f} min",
                f"{result.p99 / 60:.0f} min",
                f"{result.makespan / 3600:.1f} h",
                f"{result.busy:.2f}",
                f"{result.changes:.0f}",
                f"{result.mean / results[0].mean:.2f}",
            ]
            for result in results
        ),
    ]
