# SPDX-License-Identifier: Apache-2.0
"""Limits for the requests of each client."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from ddl_scheduler.web.errors import HttpError

CLIENTS = 4096  # clients that are remembered, the last ones seen


@dataclass(frozen=True)
class Limits:
    """The limits of the whole app."""

    body: int = 1 << 16  # bytes
    body_seconds: float = 10.0  # seconds to receive a body
    rate: float = 100.0  # requests a second of a token
    burst: float = 200.0  # requests of a token above the rate
    address_rate: float = 1000.0  # requests a second of an address, with any tokens
    streams: int = 256  # open streams of all clients
    tenant_streams: int = 64  # open streams of one tenant
    sessions: int = 1000  # browsers' sessions
    session_seconds: float = 12 * 3600.0


class Rates:
    """A rate limit for each client, with a token bucket."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        # By client: its remaining requests, and the time of the last one.
        self._clients: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def count(self, client: str, now: float) -> None:
        """Count a request. Raises HttpError if it exceeds the rate."""
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
