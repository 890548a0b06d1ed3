# SPDX-License-Identifier: Apache-2.0
"""The scheduler's web app.

Design notes
- No code here decides anything: a request changes the store and wakes the service, which plans.
- Requests are checked in this order: host, rate of the address, size (guard.py), token, rate of the
  token, CSRF (sessions.py), role, parameters, body (operations.py), and the store's own checks.
- A caller that may not see a job gets the same answer as for a job that does not exist.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ddl_scheduler.base.database import Database
from ddl_scheduler.base.store import disk_trouble
from ddl_scheduler.web import api, health, metrics, openapi, pages, streams
from ddl_scheduler.web.errors import HttpError, refusal
from ddl_scheduler.web.guard import LOOPBACK, Guard
from ddl_scheduler.web.limits import Limits
from ddl_scheduler.web.operations import OPERATIONS, RestOperation, serve
from ddl_scheduler.web.service import AppContext, Live, Slots
from ddl_scheduler.web.sessions import Sessions

SAMPLES = 1.0  # seconds between two samples of the jobs' reports
_ = (api, metrics, openapi, pages, streams)  # imported because they declare operations


def make_app(
    store_path: Path,
    live: Live,
    slots: Slots,
    wake: Any,
    *,
    hosts: Iterable[str] = (),
    secure: bool = False,
    limits: Limits | None = None,
    problem: Callable[[], str] = lambda: "",
    planner_age: Callable[[], float] = lambda: 0.0,
) -> Starlette:
    """Create the app for a store, which it opens itself.

    live         returns a job's last report, see `Job.report`, or None if there is none. The report
                 may also have `waiting`, the reason why the job has no slots, and
                 `deadline_warning`
    slots        returns all slots
    wake         called after each change of the store, in the server's thread
    hosts        names by which clients reach this machine, in addition to the loopback names
    secure       whether the server uses TLS
    problem      returns the problem that prevents writing, such as a full disk, or ""
    planner_age  returns the seconds since the planner's last turn

    The server's thread calls live, slots, problem and planner_age often, so they must be fast and
    thread-safe.
    """
    limits = limits or Limits()
    database = Database(Path(store_path))
    sessions = Sessions(database, limits, secure)
    service = AppContext(database, live, slots, wake, limits, sessions, problem, planner_age)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        sampling = asyncio.create_task(service.sample(SAMPLES))
        yield
        sampling.cancel()
        with suppress(asyncio.CancelledError):
            await sampling
        database.close()

    known = tuple(name.lower() for name in (*LOOPBACK, *hosts))
    return Starlette(
        routes=[*_routes(service), *health.routes(service), *pages.routes(service)],
        middleware=[Middleware(Guard, limits=limits, hosts=known, secure=secure)],
        exception_handlers={
            HttpError: _refused,
            HTTPException: _http_error,
            sqlite3.OperationalError: _store_error,
        },
        lifespan=lifespan,
    )


def _routes(service: AppContext) -> list[BaseRoute]:
    """Return one route for each path, so that a wrong method is rejected as such. Fixed paths come
    first."""
    paths: dict[str, dict[str, RestOperation]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = operation
    order = sorted(paths, key=lambda path: ("{" in path.rpartition("/")[2], path))
    return [_route(path, paths[path], service) for path in order]


def _route(path: str, methods: dict[str, RestOperation], service: AppContext) -> Route:
    async def endpoint(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await serve(methods[method], service, request)

    return Route(path, endpoint, methods=list(methods))


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HttpError)
    return refusal(error)


async def _store_error(_: Request, error: Exception) -> Response:
    trouble = disk_trouble(error)
    if not trouble:
        raise error
    message = f"the store cannot be written now: {trouble}; try again when the disk has room"
    return refusal(HttpError(507, message=message, headers={"retry-after": "10"}))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    messages = {
        404: f"{request.url.path} does not exist; /v1/openapi.json lists all paths",
        405: f"the method {request.method} is not supported here",
    }
    message = messages.get(error.status_code, str(error.detail))
    return refusal(HttpError(error.status_code, message=message, headers=error.headers))
