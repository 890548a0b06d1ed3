# SPDX-License-Identifier: Apache-2.0
"""/metrics, in the text format of Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from starlette.responses import Response

from ddl_scheduler.base.store import JobRecord, JobState, Store
from ddl_scheduler.web.history import plain, workers
from ddl_scheduler.web.operations import CheckedRequest, operation
from ddl_scheduler.web.views import suspects_view, tenants_view

KIND = "text/plain; version=0.0.4"

Sample = tuple[Mapping[str, object], object]  # labels and value; None means unknown


@operation("GET", "/metrics", {200: ""}, kind="text/plain")
async def metrics(call: CheckedRequest) -> Response:
    """Return counters and gauges for Prometheus, of the jobs that the token may see."""
    service, sees = call.service, call.caller.sees

    def read(
        store: Store,
    ) -> tuple[list[JobRecord], list[dict[str, object]], list[dict[str, object]]]:
        running = store.jobs_page(sees, (JobState.RUNNING,), limit=1000)
        return running, tenants_view(store, service, sees), suspects_view(store, sees)

    running, tenants, suspects = await service.database.call(read)
    slots = Counter(slot.state for slot in service.slots())
    text = [
        *_metric(
            "slots", "gauge", "Slots for workers.", [({"state": k}, v) for k, v in slots.items()]
        ),
        *_metric(
            "jobs",
            "gauge",
            "Jobs by state.",
            [
                ({"tenant": each["name"], "state": state}, count)
                for each in tenants
                for state, count in _counts(each["jobs"])
            ],
        ),
        *_metric(
            "slot_hours_total",
            "counter",
            "Slot-hours used by the tenant's jobs.",
            [({"tenant": each["name"]}, each["slot_hours"]) for each in tenants],
        ),
        *_metric(
            "idle_share",
            "gauge",
            "Share of the tenant's slot time in which no worker took part in a step.",
            [({"tenant": each["name"]}, each["idle_share"]) for each in tenants],
        ),
    ]
    text += _metric(
        "host_suspect",
        "gauge",
        "1 for a host where an audit has found a wrong worker.",
        [({"host": each["host"]}, 1) for each in suspects],
    )
    reports = [(each, plain(service.live(each.id) or {})) for each in running]
    for name, about in (
        ("loss", "The last loss."),
        ("samples_per_second", "Speed of the job."),
        ("seconds_per_step", "Time of a step."),
    ):
        samples = [(_labels(record), report.get(name)) for record, report in reports]
        text += _metric(f"job_{name}", "gauge", about, samples)
    steps = [
        (_labels(record), report.get("step", report.get("steps"))) for record, report in reports
    ]
    text += _metric("job_steps_total", "counter", "Committed steps.", steps)
    for name, key, about in (
        ("audited_shares", "audited", "Shares computed for audits."),
        ("audit_mismatches", "mismatches", "Findings of audits."),
    ):
        samples = [(_labels(record), report.get(key)) for record, report in reports]
        text += _metric(f"job_{name}_total", "counter", about, samples)
    working = [(_labels(record), workers(report)) for record, report in reports]
    text += _metric("job_workers", "gauge", "Workers that take part in steps.", working)
    return Response("".join(text), media_type=KIND)


def _counts(value: object) -> Iterable[tuple[str, object]]:
    assert isinstance(value, Mapping)
    return value.items()


def _labels(record: JobRecord) -> dict[str, object]:
    return {"job": record.id, "name": record.spec.get("name", ""), "tenant": record.tenant}


def _metric(name: str, kind: str, about: str, samples: Iterable[Sample]) -> list[str]:
    lines = [f"# HELP ddl_{name} {about}\n", f"# TYPE ddl_{name} {kind}\n"]
    for labels, value in samples:
        if value is not None:
            inner = ",".join(f'{label}="{_escape(str(text))}"' for label, text in labels.items())
            lines.append(f"ddl_{name}{{{inner}}} {value}\n")
    return lines


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
