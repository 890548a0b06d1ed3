# SPDX-License-Identifier: Apache-2.0
"""The number of slots of each job: quotas, minima by tier and arrival, then water-filling. Pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ddl_scheduler.planning.jobs import PolicyJob, Settings, Tenant


@dataclass(frozen=True)
class Request:
    """A job, with the values that the distribution of slots needs."""

    job: PolicyJob
    tier: int  # raised by ageing
    weight: float
    sizes: tuple[int, ...]  # the legal sizes, ascending
    speeds: tuple[float, ...]  # the speed-up with each size
    size: int = 0  # its present size
    limit: int = 4096  # its size may stay above this limit, but not grow beyond it
    needed: int = 0  # with fewer slots it would miss its deadline, so it comes first in its tenant

    @property
    def start(self) -> int:
        """The smallest legal size."""
        return self.sizes[0]

    @property
    def kept(self) -> bool:
        """True if the job runs and may not be paused."""
        return self.size > 0 and self.job.least > 0


@dataclass
class Filling:
    """The distribution of the free slots over the requests."""

    requests: Sequence[Request]
    tenants: Mapping[str, Tenant]
    free: dict[str, int]  # slots by kind
    settings: Settings
    sizes: dict[str, int] = field(default_factory=dict)  # slots by job
    waiting: dict[str, str] = field(default_factory=dict)  # by job: the reason
    used: dict[str, int] = field(default_factory=dict)  # slots by tenant
    # By kind of slots, and by tenant: the rank of a waiting job. Jobs of lower ranks do not start.
    held: dict[tuple[str, str], tuple[bool, float]] = field(default_factory=dict)

    def run(self) -> None:
        """Distribute the slots in three phases: the minimum of each running job that may not be
        paused, then the guaranteed slots, then all slots up to the caps. In the last two phases,
        the minima of all tiers come before further slots, and higher tiers before lower ones."""
        self._sort()
        total = dict(self.free)
        for request in self.requests:
            if request.kept and request.start <= self._left(request, None):
                self._give(request, request.start)
        guaranteed = {name: t.guarantee for name, t in self.tenants.items() if t.guarantee}
        if guaranteed:
            self._serve(total, guaranteed)
        self._serve(total, None)
        for tier in self._tiers():
            self._fill(tier, self.settings.least_worth, None)

    def _sort(self) -> None:
        self.requests = sorted(self.requests, key=lambda r: (-r.tier, r.job.arrival, r.job.name))

    def _tiers(self) -> list[list[Request]]:
        tiers: dict[int, list[Request]] = {}
        for request in self.requests:
            tiers.setdefault(request.tier, []).append(request)
        return list(tiers.values())

    def _serve(self, total: Mapping[str, int], budgets: Mapping[str, int] | None) -> None:
        for request in self.requests:
            if request.job.name not in self.sizes:
                self._begin(request, total, budgets)
        for tier in self._tiers():
            self._fill(tier, self.settings.worth, budgets)

    def _begin(
        self, request: Request, total: Mapping[str, int], budgets: Mapping[str, int] | None
    ) -> None:
        """Give a job its minimum. If the job has to wait for slots, jobs of lower tiers may not
        take these slots unless they can be paused."""
        job, start = request.job, request.start
        cap, free = self._cap(request), self.free.get(job.kind, 0)
        rank = (budgets is not None, request.tier)
        if budgets is not None and start > self._room(request, self._budget(request, budgets)):
            return
        if start > total.get(job.kind, 0):
            kind = f" of kind {job.kind}" if job.kind else ""
            reason = f"needs {start} slots{kind}; there are {total.get(job.kind, 0)}"
        elif start > cap:
            reason = f"needs {start} slots; tenant {job.tenant} may have {cap}"
        elif start > self._room(request, cap):
            used = self.used.get(job.tenant, 0)
            reason = f"needs {start} slots; tenant {job.tenant} has {used} of at most {cap}"
            self._hold(("tenant", job.tenant), rank)
        elif start > free:
            reason = f"needs {start} slots; the jobs before it leave {free} free"
            self._hold(("kind", job.kind), rank)
        elif job.least and rank < max(
            self._held("kind", job.kind), self._held("tenant", job.tenant)
        ):
            reason = "waits for jobs of higher tiers, which are waiting, too"
        else:
            self.waiting.pop(job.name, None)
            self._give(request, start)
            return
        self.waiting[job.name] = reason

    def _hold(self, what: tuple[str, str], rank: tuple[bool, int]) -> None:
        self.held[what] = max(rank, self._held(*what))

    def _held(self, sort: str, name: str) -> tuple[bool, float]:
        return self.held.get((sort, name), (False, -math.inf))

    def _give(self, request: Request, count: int) -> None:
        job = request.job
        self.sizes[job.name] = self.sizes.get(job.name, 0) + count
        self.used[job.tenant] = self.used.get(job.tenant, 0) + count
        self.free[job.kind] -= count

    def _cap(self, request: Request) -> float:
        tenant = self.tenants.get(request.job.tenant)
        return math.inf if tenant is None or tenant.cap is None else tenant.cap

    def _budget(self, request: Request, budgets: Mapping[str, int] | None) -> float:
        cap = self._cap(request)
        return cap if budgets is None else min(cap, budgets.get(request.job.tenant, 0))

    def _room(self, request: Request, budget: float) -> float:
        return budget - self.used.get(request.job.tenant, 0)

    def _fill(
        self, tier: Iterable[Request], worth: float, budgets: Mapping[str, int] | None
    ) -> None:
        """Distribute slots by water-filling. The next slots go to the tenant with the fewest slots
        for its weight, and there to the job whose next size is smallest for its weight."""
        queues: dict[str, list[tuple[tuple[object, ...], int, Request]]] = {}
        for request in tier:
            if request.job.name in self.sizes:
                self._push(queues.setdefault(request.job.tenant, []), request, worth, budgets)
        tenants = [(self._level(name), name) for name in queues]
        heapq.heapify(tenants)
        while tenants:
            _, name = heapq.heappop(tenants)
            queue = queues[name]
            if not queue:
                continue
            _, size, request = heapq.heappop(queue)
            count = size - self.sizes[request.job.name]
            if count <= self._left(request, budgets):
                self._give(request, count)
            self._push(queue, request, worth, budgets)  # its next size, or a smaller one that fits
            heapq.heappush(tenants, (self._level(name), name))

    def _level(self, tenant: str) -> float:
        weight = self.tenants[tenant].weight if tenant in self.tenants else 1.0
        return self.used.get(tenant, 0) / weight

    def _left(self, request: Request, budgets: Mapping[str, int] | None) -> float:
        room = self._room(request, self._budget(request, budgets))
        return min(self.free.get(request.job.kind, 0), room)

    def _push(
        self,
        queue: list[tuple[tuple[object, ...], int, Request]],
        request: Request,
        worth: float,
        budgets: Mapping[str, int] | None,
    ) -> None:
        """Queue a job for its next size, if one fits and gains at least `worth`."""
        now = self.sizes[request.job.name]
        urgent = now < request.needed
        worth = self.settings.least_worth if urgent else worth
        size = size_next(request, now, now + self._left(request, budgets), worth)
        if size:
            # Among equal jobs, those that already have the size come first.
            keeps = size <= request.size
            key = (not urgent, size / request.weight, not keeps, request.job.arrival)
            heapq.heappush(queue, ((*key, request.job.name), size, request))


def size_next(request: Request, now: int, most: float, worth: float) -> int:
    """Return the size up to `most` with the highest speed-up for each added slot, or 0.

    If several sizes have the same speed-up for each added slot, the smallest one counts. 0 means
    that no size gains at least `worth` for each slot. All sizes are compared, since a small gain
    may precede a large one: 16 shares gain little from 4 to 6 ranks, but much from 6 to 8.
    """
    begin = request.sizes.index(now)
    best, size = worth - 1e-9, 0
    for i in range(begin + 1, len(request.sizes)):
        if request.sizes[i] > min(most, request.limit):
            break
        gain = (request.speeds[i] - request.speeds[begin]) / (request.sizes[i] - now)
        if gain > best + 1e-9:
            best, size = gain, request.sizes[i]
    return size
