# SPDX-License-Identifier: Apache-2.0
"""What one client may ask for."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from ddl_scheduler.web.errors import HttpError

CLIENTS = 4096  # those seen last are remembered


@dataclass(frozen=True)
class Limits:
    """Of the whole app."""

    body: int = 1 << 16  # bytes
    body_seconds: float = 10.0  # until a body has come
    rate: float = 100.0  # requests a second of a token
    burst: float = 200.0  # requests of a token above the rate
    address_rate: float = 1000.0  # requests a second of an address, whatever tokens they bring
    streams: int = 64  # open at a time, of all clients
    sessions: int = 1000  # of browsers
    session_seconds: float = 12 * 3600.0


class Rates:
    """How often each client may ask."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._clients: OrderedDict[str, tuple[float, float]] = OrderedDict()  # left, and when

    def count(self, client: str, now: float) -> None:
        """One more request. Raises HttpError if it comes too early."""
        left, then = self._clients.pop(client, (self._burst, now))
        left = min(self._burst, left + (now - then) * self._rate)
        self._clients[client] = (left - (left >= 1), now)
        while len(self._clients) > CLIENTS:
            self._clients.popitem(last=False)
        if left < 1:
            wait = (1 - left) / self._rate
            raise HttpError(
                429,
                message=f"at most {self._rate:g} requests a second; wait {wait:.2f} s",
                headers={"retry-after": str(int(wait) + 1)},
            )
