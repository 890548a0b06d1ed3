# SPDX-License-Identifier: Apache-2.0
"""Ranks as threads of the test's own process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ddl_core import Config, Endpoint, add

LIMIT = 30  # seconds for anything that should end by itself


def join(endpoints: list[Endpoint], config: Config | None = None) -> Any:
    """Return the comms of ranks with these endpoints."""
    addresses = [endpoint.address for endpoint in endpoints]
    return together(lambda rank: endpoints[rank].connect(addresses, rank, config), len(endpoints))


def together(call: Callable[[int], Any], size: int) -> Any:
    """Run `call(rank)` on all ranks at once; return the results. Fails if a call does not
    return."""
    pool = ThreadPoolExecutor(size)
    try:
        return tuple(future.result(LIMIT) for future in [pool.submit(call, r) for r in range(size)])
    finally:
        pool.shutdown(wait=False)


def operand(worker: int, count: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    """Return the numbers of a worker, with many magnitudes, so that the order of additions
    matters."""
    random = np.random.default_rng(worker)
    values = random.standard_normal(count) * 10.0 ** random.integers(-6, 7, count)
    return values.astype(dtype)


def tree(first: int, size: int, count: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    """Return the sum over the operands of these workers as ddl.h defines it."""
    if size == 1:
        return operand(first, count, dtype)
    half = 1 << (size - 1).bit_length() - 1
    left, right = tree(first, half, count, dtype), tree(first + half, size - half, count, dtype)
    return add(np.empty_like(left), left, right)
