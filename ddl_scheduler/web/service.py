# SPDX-License-Identifier: Apache-2.0
"""The context that all requests share."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ddl_scheduler.base.folder import JobFolder
from ddl_scheduler.base.store import JobRecord, JobState
from ddl_scheduler.web.database import Database
from ddl_scheduler.web.errors import HttpError
from ddl_scheduler.web.history import History
from ddl_scheduler.web.limits import Limits
from ddl_scheduler.web.sessions import Sessions

Live = Callable[[int], Mapping[str, Any] | None]  # a job's report; thread-safe


class Place(Protocol):
    """A slot."""

    @property
    def id(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def state(self) -> str: ...  # free, starting, used, draining, lost
    @property
    def job(self) -> int | None: ...  # that has it


Slots = Callable[[], Iterable[Place]]  # thread-safe


@dataclass
class AppContext:
    """The store, and the process that hosts the app."""

    database: Database
    live: Live
    slots: Slots
    wake: Callable[[], object]  # called after each change of the store
    limits: Limits
    sessions: Sessions
    problem: Callable[[], str] = lambda: ""  # what hinders the service; thread-safe

    def __post_init__(self) -> None:
        self.streams: Counter[str] = Counter()  # that are open now, by tenant
        self.history = History(lambda job: JobFolder(self.path, job))

    @property
    def path(self) -> Path:
        """Return the path of the store."""
        return self.database.path

    async def job(self, number: int, sees: str | None) -> JobRecord:
        """A job that this tenant sees (None: any). Raises HttpError: whoever may not see a job does
        not learn that there is one."""
        record = await self.database.call(lambda store: store.job_find(number))
        if record is None or sees not in (None, record.tenant):
            raise HttpError(404, message=f"there is no job {number} among those that you may see")
        return record

    async def sample(self, seconds: float) -> None:
        """Record what the running jobs report, forever."""
        while True:
            with suppress(sqlite3.OperationalError, OSError):  # while the disk is full
                running = await self.database.call(lambda store: store.jobs(JobState.RUNNING))
                held = await self.database.call(lambda store: store.slots())
                reports = {record.id: self.live(record.id) for record in running}
                self.history.see(time.time(), time.monotonic(), running, held, reports)
            await asyncio.sleep(seconds)
