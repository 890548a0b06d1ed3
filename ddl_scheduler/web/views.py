# SPDX-License-Identifier: Apache-2.0
"""JSON views of jobs, slots and tenants. A tenant sees its own jobs only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ddl_scheduler.base.store import ENDED, JobRecord, JobState, Store
from ddl_scheduler.web.history import plain
from ddl_scheduler.web.service import AppContext, Place
from ddl_scheduler.web.sessions import Caller

RUNNING, QUEUED, RECENT = 1000, 200, 20  # jobs on the page: running, waiting and ended ones


def job_view(
    record: JobRecord, slots: Sequence[str], live: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return a job as JSON; `live` is its report."""
    spec, live = record.spec, live or {}
    reason = {
        JobState.WAITING: live.get("waiting") or "not planned yet",
        JobState.PAUSED: "paused by its tenant",
        JobState.FAILED: record.why,
    }
    return {
        "id": record.id,
        "tenant": record.tenant,
        "name": str(spec.get("name") or f"job-{record.id}"),
        "state": record.state,
        "tier": spec.get("tier", 0),
        "min": spec.get("min", 1),
        "max": spec.get("max"),
        "slots": list(slots),
        "reason": None if slots else reason.get(record.state),
        "warning": live.get("deadline_warning"),
        "arrival": record.arrival,
        "changed": record.changed,
        "epoch": record.epoch,
        "slot_seconds": record.used,
        "waited": record.waited,
        "step": live.get("step", live.get("steps")),
        "steps_total": live.get("steps_total"),
        "loss": plain(live.get("loss")),
        "seconds_per_step": plain(live.get("seconds_per_step")),
        "spec": {name: value for name, value in spec.items() if name != "asked"},
    }


def slots_view(slots: Iterable[Place], seen: set[int]) -> list[Any]:
    """Return all slots. The job of a slot is shown only if the caller may see it."""
    return [
        {
            "id": slot.id,
            "host": slot.host,
            "state": slot.state,
            "job": slot.job if slot.job in seen else None,
        }
        for slot in slots
    ]


def tenants_view(store: Store, service: AppContext, sees: str | None) -> list[dict[str, Any]]:
    """Return the tenants' quotas and their use."""
    found = []
    held, counts = (
        Counter(tenant for _, tenant in store.slots_owners().values()),
        store.jobs_count(),
    )
    for name, cap, guarantee, weight in store.tenants():
        if sees in (None, name):
            own = [(state, count, used) for tenant, state, count, used in counts if tenant == name]
            found.append(
                {
                    "name": name,
                    "cap": cap,
                    "guarantee": guarantee,
                    "weight": weight,
                    "slots": held[name],
                    "jobs": {state: count for state, count, _ in own},
                    "slot_hours": sum(used for *_, used in own) / 3600,
                    "idle_share": service.history.idle(name),
                }
            )
    return found


def suspects_view(store: Store, sees: str | None) -> list[dict[str, Any]]:
    """Return the hosts where audits have found workers that computed wrongly. The job's number and
    the finding's text are included only if the caller may see that job."""
    found = []
    for host, when, job, text in store.hosts_marked():
        record = store.job_find(job)
        is_seen = sees is None or (record is not None and record.tenant == sees)
        about = {"job": job, "text": text} if is_seen else {"job": None, "text": None}
        found.append({"host": host, "time": when, **about})
    return found


async def overview(service: AppContext, caller: Caller) -> dict[str, Any]:
    """Return the data of the overview page."""
    sees = caller.sees

    def read(
        store: Store,
    ) -> tuple[list[JobRecord], Mapping[int, tuple[str, ...]], list[Any], list[Any]]:
        groups = (
            ((JobState.RUNNING,), RUNNING),
            ((JobState.WAITING, JobState.PAUSED), QUEUED),
            (ENDED, RECENT),
        )
        records = [
            record
            for states, most in groups
            for record in store.jobs_page(sees, states, limit=most)
        ]
        tenants = tenants_view(store, service, sees)
        return records, store.slots(), tenants, suspects_view(store, sees)

    records, held, tenants, suspects = await service.database.call(read)
    seen = {record.id for record in records}
    return {
        "slots": slots_view(service.slots(), seen),
        "jobs": [job_view(each, held.get(each.id, ()), service.live(each.id)) for each in records],
        "tenants": tenants,
        "suspects": suspects,
        "problem": service.problem() or None,
    }
