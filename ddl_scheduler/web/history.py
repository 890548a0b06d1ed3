# SPDX-License-Identifier: Apache-2.0
"""The jobs' reports over time, and the share of their slots' time that they used."""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ddl_scheduler.base.folder import JobFolder
from ddl_scheduler.base.store import JobRecord
from ddl_scheduler.web.curve import Curve

JOBS = 500  # jobs kept in memory, the last ones seen
WORKING = ("running", "done")  # states of workers that take part in steps


class History:
    """The history of all jobs. `folder` returns the folder of a job, which keeps its curve."""

    def __init__(self, folder: Callable[[int], JobFolder]) -> None:
        self._folder = folder
        self._curves: OrderedDict[int, Curve] = OrderedDict()
        self._reports: dict[int, dict[str, Any]] = {}
        self._held: dict[str, float] = defaultdict(float)  # slot-seconds of each tenant
        self._worked: dict[str, float] = defaultdict(float)
        self._then: float | None = None

    def see(
        self,
        now: float,
        clock: float,
        running: Sequence[JobRecord],
        slots: Mapping[int, Sequence[str]],
        reports: Mapping[int, Mapping[str, Any] | None],
    ) -> None:
        """Record the reports of the running jobs. `now` is the wall clock's time, for display, and
        `clock` the monotonic clock's, for durations."""
        passed = 0.0 if self._then is None else clock - self._then
        self._then = clock
        for record in running:
            report = plain(reports.get(record.id) or {})
            held = len(slots.get(record.id, ()))
            working = workers(report)
            self._held[record.tenant] += held * passed
            self._worked[record.tenant] += min(held, working) * passed
            if report:
                self._reports[record.id] = report
                self._curve(record.id).add(point(now, report, working))

    def _curve(self, job: int) -> Curve:
        if job not in self._curves:
            self._curves[job] = Curve(self._folder(job).curve)
        self._curves.move_to_end(job)
        if len(self._curves) > JOBS:
            oldest, _ = self._curves.popitem(last=False)
            self._reports.pop(oldest, None)
        return self._curves[job]

    def points(self, job: int) -> list[dict[str, Any]]:
        """Return a job's points in order of time, including those from before this process
        started."""
        return list(self._curve(job).points)

    def report(self, job: int) -> dict[str, Any] | None:
        """Return a job's last report, or None."""
        if job in self._reports:
            return self._reports[job]
        ended = plain(self._folder(job).result().get("report"))
        return ended if isinstance(ended, dict) else None

    def idle(self, tenant: str) -> float | None:
        """Return the share of the tenant's slot time in which no worker took part in a step, since
        this process started. Return None if the tenant had no slots."""
        held = self._held.get(tenant, 0.0)
        return 1 - self._worked[tenant] / held if held else None


def point(now: float, report: Mapping[str, Any], working: int) -> dict[str, Any]:
    """Return the point of the curve that stands for a report."""
    return {
        "time": now,
        "step": report.get("step", report.get("steps")),
        "loss": report.get("loss"),
        "workers": working,
        "seconds_per_step": report.get("seconds_per_step"),
    }


def workers(report: Mapping[str, Any]) -> int:
    """Return the number of workers that take part in steps."""
    return sum(each.get("state") in WORKING for each in report.get("workers", {}).values())


def plain(value: Any) -> Any:
    """Convert a value to JSON. NaN and infinity become null."""
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    return str(value)
