# SPDX-License-Identifier: Apache-2.0
"""The policy: decides which job has which slots. Pure: equal inputs give equal results.

1  Quotas: a tenant has a cap, a guarantee and a weight.
2  Each job gets its minimum, by tier and then by arrival. Other jobs shrink to their minimum for it
   at once, but are not stopped. A job whose minimum is 0 may be paused.
3  Further slots go to higher tiers first, and in a tier to the job with the fewest slots for its
   weight. Each job grows to its next legal size while a slot gains at least half of a slot's speed.
4  Remaining slots go to jobs that gain anything from them, so that none is idle.
5  A change must pay off: it gains more within a minute than it costs.
6  Placement: a job keeps its slots, and new slots are on few hosts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ddl_scheduler.planning.filling import Filling, Request
from ddl_scheduler.planning.jobs import Map, PolicyJob, PolicySlot, Schedule, Settings, Tenant
from ddl_scheduler.planning.model import end_predict, sizes_list
from ddl_scheduler.planning.places import places_find


@dataclass(frozen=True)
class _Cluster:
    """The properties of the slots that all jobs share."""

    slots: dict[str, int]  # number of slots, by kind
    largest: dict[str, int]  # slots of the largest host, by kind
    memory: dict[str, int]  # bytes of the smallest slot, by kind

    def hosts(self, kind: str, size: int) -> int:
        """Return 1 if `size` slots fit on one host, else 2."""
        return 1 if size <= self.largest.get(kind, 0) else 2


def plan_make(
    jobs: Sequence[PolicyJob],
    slots: Sequence[PolicySlot],
    tenants: Sequence[Tenant] = (),
    last: Map | None = None,
    now: float = 0.0,
    settings: Settings | None = None,
) -> Schedule:
    """Return the slots that each job has from now on. `jobs` must not contain jobs that the user
    has paused."""
    settings, last = settings or Settings(), last or {}
    cluster = _cluster(slots)
    names = {slot.name for slot in slots}
    sizes = {name: sum(slot in names for slot in own) for name, own in last.items()}
    requests = {job.name: _request(job, cluster, sizes.get(job.name, 0), settings) for job in jobs}
    waiting = {job.name: _no_size(job, cluster) for job in jobs if not requests[job.name].sizes}
    requests = {name: request for name, request in requests.items() if request.sizes}

    def fill(requests: Mapping[str, Request]) -> Filling:
        return _fill(requests, tenants, cluster, now, settings)

    filling = fill(requests)
    found, deadlines = _deadlines(requests, filling.sizes, tenants, cluster, now, settings)
    if found != requests:
        requests, filling = found, fill(found)
    kinds = {name: request.job.kind for name, request in requests.items()}
    return Schedule(
        places_find(filling.sizes, kinds, slots, last),
        {**waiting, **filling.waiting},
        deadlines,
        _again(requests, filling.sizes, now, settings),
    )


def _cluster(slots: Sequence[PolicySlot]) -> _Cluster:
    largest: dict[str, int] = {}
    memory: dict[str, int] = {}
    for (kind, _), count in Counter((slot.kind, slot.host) for slot in slots).items():
        largest[kind] = max(count, largest.get(kind, 0))
    for slot in slots:
        if slot.memory:
            memory[slot.kind] = min(slot.memory, memory.get(slot.kind, slot.memory))
    return _Cluster(dict(Counter(slot.kind for slot in slots)), largest, memory)


def _request(job: PolicyJob, cluster: _Cluster, size: int, settings: Settings) -> Request:
    limit = cluster.memory.get(job.kind, 0)
    sizes = sizes_list(job.model.shares, job.least, job.most, job.memory, limit)
    return Request(
        job,
        job.tier + (int(job.waited // settings.ageing) if settings.ageing < math.inf else 0),
        job.weight * (settings.young_weight if job.used < settings.young else 1.0),
        sizes,
        tuple(job.model.speedup(size, cluster.hosts(job.kind, size)) for size in sizes),
        size,
    )


def _no_size(job: PolicyJob, cluster: _Cluster) -> str:
    """Return the reason why the job has no legal size."""
    shares, limit = job.model.shares, cluster.memory.get(job.kind, 0)
    if sizes_list(shares, job.least, job.most):
        return f"needs more memory than the {limit} bytes of a slot, with any number of slots"
    return f"needs {max(1, job.least)} to {job.most} slots, but has {shares} logical workers"


def _fill(
    requests: Mapping[str, Request],
    tenants: Sequence[Tenant],
    cluster: _Cluster,
    now: float,
    settings: Settings,
) -> Filling:
    """Distribute the slots, without growth that is too early or does not pay off."""
    by_name = {tenant.name: tenant for tenant in tenants}
    resting = {
        name: replace(request, limit=max(request.size, request.start))
        if request.size and now < request.job.changed + settings.rest
        else request
        for name, request in requests.items()
    }
    while True:  # ends, since each round limits at least one more job
        filling = Filling(list(resting.values()), by_name, dict(cluster.slots), settings)
        filling.run()
        vain = [
            request
            for request in resting.values()
            if not _pays(request, filling.sizes.get(request.job.name, 0), settings)
        ]
        if not vain:
            return filling
        for request in vain:
            resting[request.job.name] = replace(request, limit=request.size)


def _pays(request: Request, size: int, settings: Settings) -> bool:
    """Return True if a running job may change to this size: it does not grow, or the growth pays
    off."""
    if not request.start <= request.size < size or request.size not in request.sizes:
        return True
    speed = dict(zip(request.sizes, request.speeds, strict=True))
    return (speed[size] / speed[request.size] - 1) * settings.horizon > request.job.cost


def _deadlines(
    requests: Mapping[str, Request],
    sizes: Mapping[str, int],
    tenants: Sequence[Tenant],
    cluster: _Cluster,
    now: float,
    settings: Settings,
) -> tuple[dict[str, Request], dict[str, str]]:
    """Give priority to the jobs that would miss their deadline. Return all requests, and the
    warnings by job.

    A job with priority comes first in its tenant, and gets the highest tier of its tenant's jobs.
    So it takes slots from its own tenant, and from others no more than its tenant's share.
    """
    caps = {tenant.name: tenant.cap for tenant in tenants if tenant.cap is not None}
    tiers: dict[str, int] = {}
    for request in requests.values():
        tenant = request.job.tenant
        tiers[tenant] = max(request.tier, tiers.get(tenant, request.tier))
    found, said = dict(requests), {}
    for name, request in requests.items():
        job = request.job
        latest = job.deadline - settings.margin * max(job.deadline - now, 0.0)

        def end(size: int, job: PolicyJob = job) -> float:
            return end_predict(job.model, job.steps_left, size, cluster.hosts(job.kind, size), now)

        known = job.model.measured and job.steps_left < math.inf
        if job.deadline == math.inf or not known or end(sizes.get(name, 0)) <= latest:
            continue
        most = min(cluster.slots.get(job.kind, 0), caps.get(job.tenant, math.inf))
        possible = [size for size in request.sizes if size <= most]
        soonest = min(map(end, possible), default=math.inf)
        if soonest > job.deadline:
            late = f"ends {soonest - job.deadline:.0f} s after it at best" if possible else ""
            said[name] = f"cannot be met: {late or 'no legal number of slots is available'}"
            continue
        fastest = min(possible, key=end)
        needed = next((size for size in possible if end(size) <= latest), fastest)
        said[name] = f"needs {needed} slots from now on"
        found[name] = replace(request, tier=tiers[job.tenant], needed=needed)
    return found, said


def _again(
    requests: Mapping[str, Request], sizes: Mapping[str, int], now: float, settings: Settings
) -> float:
    """Return the earliest time at which the plan may change without an event: a job may grow again
    after its last change, a job is no longer young, or waiting raises a job's tier."""
    times = []
    for name, request in requests.items():
        job, size = request.job, sizes.get(name, 0)
        changed = job.changed if size == request.size else now
        if size and now < changed + settings.rest:
            times.append(changed + settings.rest)
        if size and job.used < settings.young:
            times.append(now + (settings.young - job.used) / size)
        if not size and settings.ageing < math.inf:
            times.append(now + settings.ageing - job.waited % settings.ageing)
    return min(times, default=math.inf)
