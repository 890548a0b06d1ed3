# SPDX-License-Identifier: Apache-2.0
"""Ranks as threads of the test's own process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ddl_core import Config, Endpoint

LIMIT = 30  # seconds for anything that should end by itself


def join(endpoints: list[Endpoint], config: Config | None = None) -> Any:
    """The comms of the ranks that these endpoints are."""
    addresses = [endpoint.address for endpoint in endpoints]
    return together(lambda rank: endpoints[rank].connect(addresses, rank, config), len(endpoints))


def together(call: Callable[[int], Any], size: int) -> Any:
    """`call(rank)` of all ranks at once; their results. Fails when one does not come back."""
    pool = ThreadPoolExecutor(size)
    try:
        return tuple(future.result(LIMIT) for future in [pool.submit(call, r) for r in range(size)])
    finally:
        pool.shutdown(wait=False)
