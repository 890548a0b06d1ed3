# SPDX-License-Identifier: Apache-2.0
"""The web app's own store, used in its own thread because it waits for the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from ddl_scheduler.base.store import Store

T = TypeVar("T")


class Database:
    """The web app's store. The first call opens it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ddl web store")
        self._store: Store | None = None

    async def call(self, function: Callable[[Store], T]) -> T:
        """Return the function's result for the store. Calls run one after the other."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._run, function)

    def _run(self, function: Callable[[Store], T]) -> T:
        if self._store is None:
            self._store = Store(self.path)
        return function(self._store)

    def close(self) -> None:
        """Close the store. Call this when no call is in progress."""

        def end() -> None:
            if self._store is not None:
                self._store.close()

        self._thread.submit(end).result()
        self._thread.shutdown()
