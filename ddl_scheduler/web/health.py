# SPDX-License-Identifier: Apache-2.0
"""The health endpoints, for probes without a token.

Design notes
- The answers have fixed texts, which reveal nothing about jobs, files or hosts. The log and the
  overview have the details.
- Probes may come with any Host header, because a kubelet sends the address of the pod. Other
  requests need a known one, see guard.py.
- One write to the store answers all probes of the next seconds, so that probes cost no disk time.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from ddl_scheduler.base.store import Store
from ddl_scheduler.web.service import AppContext

PATHS = ("/healthz", "/readyz")
STALLED = 15.0  # seconds without a turn of the planner after which the service is not ready
WRITE_EVERY = 5.0  # seconds for which the result of a write is used
WRITE_LIMIT = 3.0  # seconds that a probe waits for the write


class StoreCheck:
    """A test that the store can be written, at most once in WRITE_EVERY seconds."""

    def __init__(self, service: AppContext) -> None:
        self._service = service
        self._write: asyncio.Task[bool] | None = None
        self._until = 0.0

    async def passes(self) -> bool:
        """Return True if the last write succeeded. Start a write if it is due."""
        now = time.monotonic()
        if self._write is None or (self._write.done() and now >= self._until):
            self._write, self._until = asyncio.create_task(self._try()), now + WRITE_EVERY
        done, _ = await asyncio.wait([self._write], timeout=WRITE_LIMIT)
        return bool(done) and self._write.result()

    async def _try(self) -> bool:
        try:
            await self._service.database.call(Store.write_check)
        except (sqlite3.Error, OSError):
            return False
        return True


def routes(service: AppContext) -> list[BaseRoute]:
    """Return the routes of the health endpoints."""
    store = StoreCheck(service)

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        reasons = []
        if service.problem() or not await store.passes():
            reasons.append("the store cannot be written")
        if service.planner_age() > STALLED:
            reasons.append("the planner does not run")
        if reasons:
            return PlainTextResponse("; ".join(reasons) + "\n", 503)
        return PlainTextResponse("ok\n")

    return [Route(path, each) for path, each in zip(PATHS, (healthz, readyz), strict=True)]
