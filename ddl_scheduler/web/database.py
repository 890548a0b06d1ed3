# SPDX-License-Identifier: Apache-2.0
"""The app's own store. It waits for the disk, so it has a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from ddl_scheduler.base.store import Store

T = TypeVar("T")


class Database:
    """Opened with the first call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ddl web store")
        self._store: Store | None = None

    async def call(self, function: Callable[[Store], T]) -> T:
        """What this function makes of the store, one call after the other."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._run, function)

    def _run(self, function: Callable[[Store], T]) -> T:
        if self._store is None:
            self._store = Store(self.path)
        return function(self._store)

    def close(self) -> None:
        """When no call is under way."""

        def end() -> None:
            if self._store is not None:
                self._store.close()

        self._thread.submit(end).result()
        self._thread.shutdown()
