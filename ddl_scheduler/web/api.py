# SPDX-License-Identifier: Apache-2.0
"""The REST interface, /v1."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from ddl_scheduler.base import requests
from ddl_scheduler.base.folder import JobFolder
from ddl_scheduler.base.logs import log_names, log_read
from ddl_scheduler.base.requests import RequestError, Schema, sizes_read, spec_read
from ddl_scheduler.base.store import (
    ENDED,
    ROLES,
    STATES,
    UNFINISHED,
    JobRecord,
    JobState,
    Store,
    StoreError,
)
from ddl_scheduler.web.errors import HttpError
from ddl_scheduler.web.history import plain
from ddl_scheduler.web.operations import LARGEST, CheckedRequest, answer, operation
from ddl_scheduler.web.schemas import object_schema
from ddl_scheduler.web.views import job_view, overview, slots_view, tenants_view

AFTER: Schema = {"type": "integer", "minimum": 0, "maximum": LARGEST}
_LIMIT: Schema = {"type": "integer", "minimum": 1, "maximum": 1000}
_KEY: Schema = {
    "type": "string",
    "pattern": "^[!-~]{1,64}$",
    "description": "up to 64 visible characters; the same key always names the same job",
}
_TENANT: Schema = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "cap": {
            "type": ["integer", "null"],
            "minimum": 0,
            "maximum": 1 << 20,
            "description": "the most slots of all its jobs; null means no limit",
        },
        "guarantee": {
            "type": "integer",
            "minimum": 0,
            "maximum": 1 << 20,
            "description": "slots that its jobs get before other tenants' jobs",
        },
        "weight": {
            "type": "number",
            "minimum": 0.001,
            "maximum": 1000,
            "description": "its share of contended slots",
        },
    },
}


@operation("GET", "/v1/overview", {200: "Overview"})
async def overview_get(call: CheckedRequest) -> Response:
    """Return the slots, the tenants and some jobs: the running jobs, the newest waiting jobs, and
    the jobs that ended last."""
    return answer(await overview(call.service, call.caller))


# ---- jobs ----


@operation(
    "GET",
    "/v1/jobs",
    {200: "Jobs"},
    query={
        "state": {"type": "string", "enum": ["active", *STATES]},
        "before": {**AFTER, "description": "number of a job; only older jobs are listed"},
        "limit": _LIMIT,
    },
)
async def jobs_list(call: CheckedRequest) -> Response:
    """List jobs, the newest first."""
    state, limit = call.query.get("state"), call.query.get("limit", 100)
    states: tuple[JobState, ...] = UNFINISHED if state == "active" else ()
    if state and state != "active":
        states = (JobState(state),)

    def read(store: Store) -> tuple[list[JobRecord], Mapping[int, tuple[str, ...]]]:
        before = call.query.get("before", 0)
        return store.jobs_page(call.caller.sees, states, before, limit), store.slots()

    records, held = await call.service.database.call(read)
    live = call.service.live
    jobs = [job_view(each, held.get(each.id, ()), live(each.id)) for each in records]
    return answer({"jobs": jobs, "next": records[-1].id if len(records) == limit else None})


@operation(
    "POST",
    "/v1/jobs",
    {201: "Job", 200: "Job"},
    role="user",
    body=requests.JOB,
    headers={"idempotency-key": _KEY},
)
async def job_submit(call: CheckedRequest) -> Response:
    """Submit a job of the token's tenant. A repeated request with the same Idempotency-Key returns
    the job that exists, with status 200."""
    spec = spec_read(call.body).fields()
    key = call.request.headers.get("idempotency-key") or secrets.token_hex(16)
    tenant = call.caller.tenant

    def write(store: Store) -> tuple[int, bool]:
        now = time.time()
        job = store.job_submit(tenant, key, spec, now)
        record = store.job_find(job)
        return job, record is not None and record.arrival == now

    job, new = await _change(call, write)
    shown = await _shown(call, job)
    return answer(shown, 201 if new else 200, {"location": f"/v1/jobs/{job}"})


@operation("GET", "/v1/jobs/{job}", {200: "Job"})
async def job_get(call: CheckedRequest) -> Response:
    """Return a job."""
    return answer(await _shown(call, call.path["job"]))


@operation(
    "PATCH",
    "/v1/jobs/{job}",
    {200: "Job"},
    role="user",
    body=object_schema(**requests.SIZES),
)
async def job_scale(call: CheckedRequest) -> Response:
    """Change the sizes of a job."""
    record = await _own(call)
    least, most = sizes_read(call.body, requests.MOST)
    await _change(call, lambda store: store.job_scale(record.id, least, most, time.time()))
    return answer(await _shown(call, record.id))


@operation("POST", "/v1/jobs/{job}/cancel", {200: "Job"}, role="user")
async def job_cancel(call: CheckedRequest) -> Response:
    """Cancel a job. It cannot be resumed."""
    return await _move(call, JobState.CANCELLED)


@operation("POST", "/v1/jobs/{job}/pause", {200: "Job"}, role="user")
async def job_pause(call: CheckedRequest) -> Response:
    """Take a job's slots away until it is resumed."""
    return await _move(call, JobState.PAUSED)


@operation("POST", "/v1/jobs/{job}/resume", {200: "Job"}, role="user")
async def job_resume(call: CheckedRequest) -> Response:
    """Let a paused job wait for slots again, or restart a failed job from its checkpoint."""
    record = await _own(call)
    if record.state not in (JobState.PAUSED, JobState.FAILED):
        raise HttpError(409, message=f"job {record.id} is {record.state}, not paused or failed")
    if record.state == JobState.FAILED:
        folder = JobFolder(call.service.path, record.id)
        if not folder.has_checkpoint():
            raise HttpError(
                409,
                message=f"job {record.id} has failed and has no checkpoint in its folder; submit"
                " it again: it then resumes from a checkpoint elsewhere, if there is one",
            )
        # Otherwise the service would use the failed run's result as the job's.
        folder.result_write({**folder.result(), "state": "resumed"})
    return await _move(call, JobState.WAITING)


async def _move(call: CheckedRequest, state: JobState) -> Response:
    record = await _own(call)
    why = f"requested by {call.caller.tenant}"
    await _change(call, lambda store: store.job_move(record.id, state, time.time(), why))
    return answer(await _shown(call, record.id))


@operation("GET", "/v1/jobs/{job}/report", {200: "Report"})
async def job_report(call: CheckedRequest) -> Response:
    """Return a job's last report, its reports over time, and its events."""
    return answer(await report(call))


async def report(call: CheckedRequest) -> dict[str, Any]:
    """Return the answer of `job_report`."""
    service, number = call.service, call.path["job"]
    shown = await _shown(call, number)
    events = await service.database.call(lambda store: store.events_last(number))
    history = service.history
    live = service.live(number)
    return {
        "job": shown,
        "live": plain(live) if live is not None else history.report(number),
        "history": history.points(number),
        "events": [event_view(*each) for each in events],
    }


@operation("GET", "/v1/jobs/{job}/logs", {200: "Logs"})
async def logs_list(call: CheckedRequest) -> Response:
    """List the names of a job's logs: "job" for its events, "workerN" for a worker's output."""
    record = await call.service.job(call.path["job"], call.caller.sees)
    return answer({"logs": log_names(call.service.path, record.id)})


@operation(
    "GET",
    "/v1/jobs/{job}/logs/{log}",
    {200: "Log"},
    query={"offset": {**AFTER, "description": "offset of the first byte"}},
)
async def log_get(call: CheckedRequest) -> Response:
    """Return some lines of a log. Control characters are escaped."""
    record = await call.service.job(call.path["job"], call.caller.sees)
    ended = record.state in ENDED
    text, end = log_text(call, record.id, call.path["log"], call.query.get("offset", 0), ended)
    return answer({"text": text, "next": end})


def log_text(
    call: CheckedRequest, job: int, name: str, offset: int, ended: bool
) -> tuple[str, int]:
    """Return the lines that log_read returns. Raises HttpError."""
    try:
        return log_read(call.service.path, job, name, offset, ended)
    except OSError as error:
        raise HttpError(409, message=f"the log cannot be read: {error.strerror or error}") from None


# ---- slots, tenants, events ----


@operation("GET", "/v1/slots", {200: "Slots"})
async def slots_list(call: CheckedRequest) -> Response:
    """List the slots of the cluster, and the jobs that have them."""
    sees = call.caller.sees

    def read(store: Store) -> set[int]:
        owners = store.slots_owners()
        return {job for job, tenant in owners.values() if sees in (None, tenant)}

    seen = await call.service.database.call(read)
    return answer({"slots": slots_view(call.service.slots(), seen)})


@operation(
    "POST",
    "/v1/suspects/clear",
    {204: ""},
    role="admin",
    body=object_schema(host={"type": "string", "maxLength": 256}),
)
async def suspect_clear(call: CheckedRequest) -> Response:
    """Remove the mark of a host on which an audit found a worker that computed wrongly."""
    await _change(call, lambda store: store.host_clear(call.body["host"]))
    return Response(status_code=204)


@operation("GET", "/v1/tenants", {200: "Tenants"})
async def tenants_list(call: CheckedRequest) -> Response:
    """List the quotas of tenants and their use: for all tenants if the caller is an admin, else for
    the token's tenant."""
    service, sees = call.service, call.caller.sees
    tenants = await service.database.call(lambda store: tenants_view(store, service, sees))
    return answer({"tenants": tenants})


@operation("PUT", "/v1/tenants/{tenant}", {200: "Tenants"}, role="admin", body=_TENANT)
async def tenant_put(call: CheckedRequest) -> Response:
    """Add a tenant, or change its quota. Fields that are left out get their defaults."""
    name, body = call.path["tenant"], call.body
    cap, guarantee = body.get("cap"), body.get("guarantee", 0)
    if cap is not None and guarantee > cap:
        raise RequestError("guarantee", guarantee, f"at most cap={cap}")
    await _change(
        call, lambda store: store.tenant_put(name, cap, guarantee, body.get("weight", 1.0))
    )
    return await tenants_list(call)


@operation(
    "POST",
    "/v1/tenants/{tenant}/tokens",
    {201: "Token"},
    role="admin",
    body=object_schema(role={"type": "string", "enum": list(ROLES)}),
)
async def token_create(call: CheckedRequest) -> Response:
    """Create a token for a tenant, and return it. It cannot be read again."""
    tenant, role = call.path["tenant"], call.body["role"]
    names = await call.service.database.call(lambda store: [each[0] for each in store.tenants()])
    if tenant not in names:
        raise HttpError(404, message=f"tenant {tenant!r} does not exist")
    token = await _change(call, lambda store: store.token_create(tenant, role))
    return answer({"token": token}, 201)


@operation(
    "POST",
    "/v1/tokens/revoke",
    {204: ""},
    role="admin",
    body=object_schema(token={"type": "string", "maxLength": 256}),
)
async def token_revoke(call: CheckedRequest) -> Response:
    """Revoke a token, or the token with this id. It need not be a valid one."""
    await _change(call, lambda store: store.token_revoke(call.body["token"]))
    return Response(status_code=204)


@operation(
    "GET",
    "/v1/events",
    {200: "Events"},
    query={
        "after": {**AFTER, "description": "number of an event; only later events are listed"},
        "job": {"type": "integer", "minimum": 1, "maximum": LARGEST},
        "limit": _LIMIT,
    },
)
async def events_list(call: CheckedRequest) -> Response:
    """List events, in order."""
    return answer({"events": await events(call, call.query.get("after", 0))})


async def events(call: CheckedRequest, after: int) -> list[dict[str, Any]]:
    """Return the events with numbers after `after` that the caller may see."""
    limit, job = call.query.get("limit", 100), call.query.get("job")
    sees = call.caller.sees
    found = await call.service.database.call(lambda store: store.events(after, limit, sees, job))
    return [event_view(*each) for each in found]


def event_view(number: int, when: float, job: int | None, text: str) -> dict[str, Any]:
    """Return an event as JSON."""
    return {"id": number, "time": when, "job": job, "text": text}


# ---- shared functions ----


async def _own(call: CheckedRequest) -> JobRecord:
    return await call.service.job(call.path["job"], call.caller.sees)


async def _shown(call: CheckedRequest, number: int) -> dict[str, Any]:
    record = await call.service.job(number, call.caller.sees)
    held = await call.service.database.call(lambda store: store.slots())
    return job_view(record, held.get(number, ()), call.service.live(number))


async def _change(call: CheckedRequest, write: Any) -> Any:
    """Change the store, and notify the service. Raises HttpError if the store rejects the
    change."""
    try:
        result = await call.service.database.call(write)
    except StoreError as error:
        raise HttpError(409, message=str(error)) from None
    call.service.wake()
    return result
