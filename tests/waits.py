# SPDX-License-Identifier: Apache-2.0
"""Waiting for elastic jobs in tests, even on a busy machine."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable

LIMIT = 240  # time limit in seconds for functions that must not hang


def wait_until(condition: Callable[[], bool], limit: float = LIMIT) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, f"not so within {limit:.0f} s"
        time.sleep(0.05)


def under_load(seconds: float) -> float:
    """Return the seconds multiplied by the load of the machine."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def final_state(out: str) -> str:
    """Return the hash that one worker has printed, as `ddl elastic run` shows it."""
    (found,) = re.findall(r"^\[\d+\] state (\w{64})$", out, re.M)
    return str(found)
