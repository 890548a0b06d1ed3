# SPDX-License-Identifier: Apache-2.0
"""The scheduling methods that simulations compare: our policy and methods of other schedulers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from ddl_scheduler.planning.jobs import Map, PolicyJob, PolicySlot, Settings
from ddl_scheduler.planning.places import places_find
from ddl_scheduler.planning.policy import plan_make
from ddl_scheduler.simulation.simulate import Decide, Method, Running

CHANGE = 0.5  # seconds in which a changing job does nothing
RESTART = 30.0  # the same if a change is a restart from a checkpoint
CADENCE = 60.0  # seconds between two plans of a scheduler that restarts jobs
HORIZON = 600.0  # seconds within which a restart must pay off; with fewer, jobs would seldom grow


def methods_all(slots: Sequence[PolicySlot]) -> list[Method]:
    """Return all methods: the simplest ones, our policy with and without restarts, and heSRPT. Some
    methods know all sizes, as their names say; no real scheduler can."""
    return [
        Method("FIFO, fixed W", _fixed(slots, _by_arrival, strict=True), RESTART, restarts=True),
        Method("SRTF, fixed W, knows sizes", _fixed(slots, _by_rest), RESTART, restarts=True),
        Method(
            "ours, restarts each 60 s", _policy(slots, RESTART, HORIZON), RESTART, CADENCE, True
        ),
        Method("ours", _policy(slots, CHANGE), CHANGE),
        Method("heSRPT, knows sizes", _hesrpt(slots), CHANGE),
    ]


def _policy(
    slots: Sequence[PolicySlot], cost: float, horizon: float = Settings().horizon
) -> Decide:
    settings = Settings(horizon=horizon)

    def decide(active: Sequence[Running], last: Map, now: float) -> tuple[Map, float]:
        jobs = [_job(running, cost) for running in active]
        plan = plan_make(jobs, slots, (), last, now, settings)
        return plan.slots, plan.again

    return decide


def _job(running: Running, cost: float) -> PolicyJob:
    return PolicyJob(
        running.job.name,
        running.job.tenant,
        running.job.arrival,
        running.model,
        tier=running.job.tier,
        used=running.used,
        waited=running.waited,
        changed=running.changed,
        cost=cost,
    )


def _placed(slots: Sequence[PolicySlot], sizes: Mapping[str, int], last: Map) -> Map:
    return places_find(sizes, dict.fromkeys(sizes, ""), slots, last)


def _by_arrival(running: Running) -> tuple[float, ...]:
    return (not running.slots, running.job.arrival)


def _by_rest(running: Running) -> tuple[float, ...]:
    return (running.left * running.job.model.seconds(running.job.asked), running.job.arrival)


def _fixed(
    slots: Sequence[PolicySlot], order: Callable[[Running], tuple[float, ...]], strict: bool = False
) -> Decide:
    """Return a method that gives each job the number of slots that it asked for, or none.

    strict  True if no job may start before a job that precedes it in `order`
    """

    def decide(active: Sequence[Running], last: Map, now: float) -> tuple[Map, float]:
        free, sizes = len(slots), {}
        for running in sorted(active, key=order):
            asked = min(running.job.asked, len(slots))
            if asked <= free:
                sizes[running.job.name] = asked
                free -= asked
            elif strict:
                break
        return _placed(slots, sizes, last), math.inf

    return decide


def _hesrpt(slots: Sequence[PolicySlot], power: float = 0.9) -> Decide:
    """Return heSRPT (Berg et al., 2020), which has the least mean time if sizes are known.

    It assumes that W slots make each job W**power times as fast. The i-th longest of m jobs gets
    (i/m)**c - ((i-1)/m)**c of all slots, where c = 1 / (1 - power).
    """
    exponent = 1 / (1 - power)

    def decide(active: Sequence[Running], last: Map, now: float) -> tuple[Map, float]:
        queue = sorted(active, key=lambda r: (r.left * r.job.model.seconds(1), r.job.name))
        count, free, sizes = len(queue), len(slots), {}
        for place, running in zip(range(count, 0, -1), queue, strict=True):
            share = (place / count) ** exponent - ((place - 1) / count) ** exponent
            size = min(free, running.job.model.shares, round(share * len(slots)))
            sizes[running.job.name] = size
            free -= size
        for running in queue:
            more = min(free, running.job.model.shares - sizes[running.job.name])
            sizes[running.job.name] += more
            free -= more
        return _placed(slots, sizes, last), math.inf

    return decide
