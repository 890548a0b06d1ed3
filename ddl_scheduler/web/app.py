# SPDX-License-Identifier: Apache-2.0
"""The scheduler's web app.

Design notes
- Nothing here decides: a request changes the store, and then the service is woken, which plans.
- What comes is checked in this order: host, rate of the address, size (guard.py), token, rate of
  the token, CSRF (sessions.py), role, parameters, body (operations.py), and what the store says.
- Whoever may not see a job is told that there is none.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ddl_scheduler.web import api, metrics, openapi, pages, streams
from ddl_scheduler.web.database import Database
from ddl_scheduler.web.errors import HttpError, refusal
from ddl_scheduler.web.guard import LOOPBACK, Guard
from ddl_scheduler.web.limits import Limits
from ddl_scheduler.web.operations import OPERATIONS, RestOperation, serve
from ddl_scheduler.web.service import AppContext, Live, Slots
from ddl_scheduler.web.sessions import Sessions

SAMPLES = 1.0  # seconds between two samples of the jobs' reports
_ = (api, metrics, openapi, pages, streams)  # they declare the operations


def make_app(
    store_path: Path,
    live: Live,
    slots: Slots,
    wake: Any,
    *,
    hosts: Iterable[str] = (),
    secure: bool = False,
    limits: Limits | None = None,
) -> Starlette:
    """The app over a store, which it opens itself.

    live    the report of a job, as `Job.report` has it; None if there is none. It may also have
            `waiting`, why the job has no slots, and `deadline_warning`. Called often, in
            the server's thread: it must be quick, and thread-safe
    slots   all there are; likewise
    wake    called after each change of the store, in the server's thread
    hosts   names by which this machine is reached, beside those of loopback
    secure  whether TLS is spoken
    """
    limits = limits or Limits()
    database = Database(Path(store_path))
    sessions = Sessions(database, limits, secure)
    service = AppContext(database, live, slots, wake, limits, sessions)

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
        routes=[*_routes(service), *pages.routes(service)],
        middleware=[Middleware(Guard, limits=limits, hosts=known, secure=secure)],
        exception_handlers={HttpError: _refused, HTTPException: _http_error},
        lifespan=lifespan,
    )


def _routes(service: AppContext) -> list[BaseRoute]:
    """One for each path, so that another method of it is refused as such; fixed paths first."""
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


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    messages = {
        404: f"there is no {request.url.path}; /v1/openapi.json lists all there is",
        405: f"{request.method} is not possible here",
    }
    message = messages.get(error.status_code, str(error.detail))
    return refusal(HttpError(error.status_code, message=message, headers=error.headers))
