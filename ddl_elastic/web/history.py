"""What jobs reported over time, and how much of their slots they used. In memory, and bounded."""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from ddl_elastic.scheduler.store import Record

POINTS = 1000  # of a job; then each second one is dropped
JOBS = 500  # those seen last are remembered
WORKING = ("running", "done")  # states of workers


class History:
    """Points of (time, step, loss, workers, seconds a step) for each job."""

    def __init__(self) -> None:
        self._points: OrderedDict[int, list[dict[str, Any]]] = OrderedDict()
        self._sparse: dict[int, int] = {}  # samples for one point
        self._skipped: dict[int, int] = defaultdict(int)
        self._reports: dict[int, dict[str, Any]] = {}
        self._held: dict[str, float] = defaultdict(float)  # slot-seconds of each tenant
        self._worked: dict[str, float] = defaultdict(float)
        self._then: float | None = None

    def see(
        self,
        now: float,
        running: Sequence[Record],
        slots: Mapping[int, Sequence[str]],
        reports: Mapping[int, Mapping[str, Any] | None],
    ) -> None:
        """What the running jobs report now."""
        passed = 0.0 if self._then is None else max(0.0, now - self._then)
        self._then = now
        for record in running:
            report = plain(reports.get(record.id) or {})
            held = len(slots.get(record.id, ()))
            working = workers(report)
            self._held[record.tenant] += held * passed
            self._worked[record.tenant] += min(held, working) * passed
            if report:
                self._reports[record.id] = report
                self._add(record.id, point(now, report, working))

    def _add(self, job: int, new: dict[str, Any]) -> None:
        points = self._points.pop(job, [])
        self._points[job] = points
        changed = not points or points[-1]["workers"] != new["workers"]
        self._skipped[job] += 1
        if changed or self._skipped[job] >= self._sparse.get(job, 1):
            self._skipped[job] = 0
            points.append(new)
        if len(points) > POINTS:
            del points[1::2]
            self._sparse[job] = 2 * self._sparse.get(job, 1)
        if len(self._points) > JOBS:
            oldest, _ = self._points.popitem(last=False)
            for each in (self._sparse, self._skipped, self._reports):
                each.pop(oldest, None)

    def points(self, job: int) -> list[dict[str, Any]]:
        """In order of time."""
        return list(self._points.get(job, ()))

    def report(self, job: int) -> dict[str, Any] | None:
        """The last one."""
        return self._reports.get(job)

    def idle(self, tenant: str) -> float | None:
        """The share of its slots' time, since this process started, in which no worker took part
        in a step; None while it had none."""
        held = self._held.get(tenant, 0.0)
        return 1 - self._worked[tenant] / held if held else None


def point(now: float, report: Mapping[str, Any], working: int) -> dict[str, Any]:
    """One of a report."""
    return {
        "time": now,
        "step": report.get("step", report.get("steps")),
        "loss": report.get("loss"),
        "workers": working,
        "seconds_per_step": report.get("seconds_per_step"),
    }


def workers(report: Mapping[str, Any]) -> int:
    """How many take part."""
    return sum(each.get("state") in WORKING for each in report.get("workers", {}).values())


def plain(value: Any) -> Any:
    """As JSON can have it: numbers that are none become null."""
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    return str(value)
