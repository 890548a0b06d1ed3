# SPDX-License-Identifier: Apache-2.0
"""Server-sent events: streams that send each change.

A stream polls for changes twice a second, and sends them. It ends when the client disconnects, or
when its token is revoked. A client that was disconnected continues with the Last-Event-ID header.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ddl_scheduler.base.logs import log_names
from ddl_scheduler.base.requests import RequestError, check
from ddl_scheduler.base.store import ENDED
from ddl_scheduler.web import api
from ddl_scheduler.web.errors import HttpError
from ddl_scheduler.web.operations import CheckedRequest, operation
from ddl_scheduler.web.views import overview

TICK = 0.5  # seconds between two polls
ALIVE = 10.0  # seconds between two keep-alive comments, and between two checks of the token
STREAM = "text/event-stream"

Event = tuple[str, str, Any]  # kind, id ("": none), data
Read = Callable[[], Awaitable[list[Event] | None]]  # returns what is new; None ends the stream


@operation("GET", "/v1/overview/stream", {200: ""}, kind=STREAM)
async def overview_stream(call: CheckedRequest) -> Response:
    """Stream the overview, each time it has changed."""
    return _changes(call, "overview", lambda: overview(call.service, call.caller))


@operation("GET", "/v1/jobs/{job}/report/stream", {200: ""}, kind=STREAM)
async def report_stream(call: CheckedRequest) -> Response:
    """Stream a job's report, each time it has changed. After the first message, `history` has the
    new points only."""
    await call.service.job(call.path["job"], call.caller.sees)
    seen = 0.0

    async def look() -> dict[str, Any]:
        nonlocal seen
        found = await api.report(call)
        found["history"] = [point for point in found["history"] if point["time"] > seen]
        seen = max([seen, *(point["time"] for point in found["history"])])
        return found

    return _changes(call, "report", look)


@operation(
    "GET",
    "/v1/events/stream",
    {200: ""},
    kind=STREAM,
    query={"after": api.AFTER},
    headers={"last-event-id": {"type": "string", "pattern": "^[0-9]{1,15}$"}},
)
async def events_stream(call: CheckedRequest) -> Response:
    """Stream the events from now on, or the events after the one with a given number."""
    last = call.request.headers.get("last-event-id")
    seen: int
    if last or "after" in call.query:
        seen = int(last) if last else call.query["after"]
    else:
        seen = await call.service.database.call(lambda store: store.event_last())

    async def read() -> list[Event]:
        nonlocal seen
        found = await api.events(call, seen)
        seen = max([seen, *(each["id"] for each in found)])
        return [("event", str(each["id"]), each) for each in found]

    return _stream(call, read)


@operation(
    "GET",
    "/v1/jobs/{job}/logs/stream",
    {200: ""},
    kind=STREAM,
    headers={"last-event-id": {"type": "string", "maxLength": 65536}},
)
async def logs_stream(call: CheckedRequest) -> Response:
    """Stream all logs of a job from the beginning, as they grow. Each message has the name of the
    log and some lines. The message "end" means that the job has ended."""
    number, sees = call.path["job"], call.caller.sees
    await call.service.job(number, sees)
    offsets = _offsets(call.request.headers.get("last-event-id", "{}"))
    over = False

    async def read() -> list[Event] | None:
        nonlocal over
        if over:
            return None
        record = await call.service.job(number, sees)
        ended = record.state in ENDED
        messages: list[Event] = []
        for name in log_names(call.service.path, number):
            text, end = api.log_text(call, number, name, offsets.get(name, 0), ended)
            if text:
                offsets[name] = end
                messages.append(("log", json.dumps(offsets), {"log": name, "text": text}))
        if ended and not messages:
            over = True
            messages.append(("end", "", {"state": record.state}))
        return messages

    return _stream(call, read)


def _offsets(text: str) -> dict[str, int]:
    """Return, for each log, the offset at which the client was disconnected."""
    schema = {
        "type": "object",
        "additionalProperties": api.AFTER,
        "propertyNames": {"type": "string", "pattern": "^(job|worker[0-9]{1,6})$"},
    }
    try:
        found = check(schema, json.loads(text), "last-event-id")
    except (ValueError, RecursionError) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError("last-event-id", text, "the id of a message of this stream") from None
    assert isinstance(found, dict)
    return found


def _changes(
    call: CheckedRequest, kind: str, look: Callable[[], Awaitable[dict[str, Any]]]
) -> Response:
    sent: dict[str, Any] | None = None

    async def read() -> list[Event]:
        nonlocal sent
        found = await look()
        if found == sent:
            return []
        sent = found
        return [(kind, "", found)]

    return _stream(call, read)


def _stream(call: CheckedRequest, read: Read) -> Response:
    """Start a stream and count it until it ends. Raises HttpError if too many are open."""
    streams, limits, tenant = call.service.streams, call.service.limits, call.caller.tenant
    for count, most, whose in (
        (streams.total(), limits.streams, ""),
        (streams[tenant], limits.tenant_streams, f" by tenant {tenant}"),
    ):
        if count >= most:
            message = f"{most} streams are open already{whose}; close one first"
            raise HttpError(429, message=message, headers={"retry-after": "10"})
    streams[tenant] += 1
    return _Stream(call, read)


class _Stream(StreamingResponse):
    """A response that is counted as an open stream until it ends for any reason."""

    def __init__(self, call: CheckedRequest, read: Read) -> None:
        super().__init__(_messages(call, read), media_type=STREAM)
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._call.service.streams[self._call.caller.tenant] -= 1


async def _messages(call: CheckedRequest, read: Read) -> AsyncIterator[str]:
    service = call.service
    shown = time.monotonic()
    yield ": begins\n\n"
    try:
        while (messages := await read()) is not None:
            for kind, number, data in messages:
                head = f"id: {number}\n" if number else ""
                yield f"{head}event: {kind}\ndata: {json.dumps(data)}\n\n"
            if time.monotonic() - shown > ALIVE:
                shown = time.monotonic()
                if not await service.sessions.look_up(call.caller.token):
                    return
                yield ": alive\n\n"
            if not messages:
                await asyncio.sleep(TICK)
    except HttpError:
        return  # the caller may not see it any more
