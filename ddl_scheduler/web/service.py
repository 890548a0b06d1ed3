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

from ddl_scheduler.base.database import Database
from ddl_scheduler.base.folder import JobFolder
from ddl_scheduler.base.store import JobRecord, JobState
from ddl_scheduler.web.errors import HttpError
from ddl_scheduler.web.history import History
from ddl_scheduler.web.limits import Limits
from ddl_scheduler.web.sessions import Sessions

Live = Callable[[int], Mapping[str, Any] | None]  # a job's report; thread-safe


class Place(Protocol):
    """A slot with its state and its job."""

    @property
    def id(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def state(self) -> str: ...  # free, starting, used, draining, lost
    @property
    def job(self) -> int | None: ...  # the job that has the slot


Slots = Callable[[], Iterable[Place]]  # thread-safe


@dataclass
class AppContext:
    """The store, and the functions of the process that hosts the app."""

    database: Database
    live: Live
    slots: Slots
    wake: Callable[[], object]  # called after each change of the store
    limits: Limits
    sessions: Sessions
    problem: Callable[[], str] = lambda: ""  # the problem that prevents writing; thread-safe
    planner_age: Callable[[], float] = lambda: 0.0  # seconds since its last turn; thread-safe

    def __post_init__(self) -> None:
        self.streams: Counter[str] = Counter()  # the number of open streams by tenant
        self.history = History(lambda job: JobFolder(self.path, job))

    @property
    def path(self) -> Path:
        """Return the path of the store."""
        return self.database.path

    async def job(self, number: int, sees: str | None) -> JobRecord:
        """Return a job that this tenant may see (None: any job).

        Raises HttpError. The answer does not reveal whether a job exists that the tenant may not
        see.
        """
        record = await self.database.call(lambda store: store.job_find(number))
        if record is None or sees not in (None, record.tenant):
            raise HttpError(404, message=f"job {number} does not exist, or you may not see it")
        return record

    async def sample(self, seconds: float) -> None:
        """Record the reports of the running jobs at this interval, forever."""
        while True:
            with suppress(sqlite3.OperationalError, OSError):  # while the disk is full
                running = await self.database.call(lambda store: store.jobs(JobState.RUNNING))
                held = await self.database.call(lambda store: store.slots())
                reports = {record.id: self.live(record.id) for record in running}
                self.history.see(time.time(), time.monotonic(), running, held, reports)
            await asyncio.sleep(seconds)
