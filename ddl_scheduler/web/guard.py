# SPDX-License-Identifier: Apache-2.0
"""Checks that every request passes first: its host, its rate and its size.

Plain ASGI, so that streams pass through unchanged.
"""

from __future__ import annotations

import asyncio
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ddl_scheduler.web.errors import HttpError, refusal
from ddl_scheduler.web.health import PATHS as HEALTH
from ddl_scheduler.web.limits import Limits, Rates

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_HEADERS = {
    "content-security-policy": "default-src 'self'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'self';"
    " frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


class Guard:
    """A middleware that rejects invalid requests, and adds the headers that browsers need."""

    def __init__(self, app: ASGIApp, limits: Limits, hosts: tuple[str, ...], secure: bool) -> None:
        self._app, self._limits, self._hosts, self._secure = app, limits, hosts, secure
        self._rates = Rates(limits.address_rate, limits.address_rate)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_safe(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
                if self._secure:
                    headers["strict-transport-security"] = "max-age=31536000"
            await send(message)

        try:
            self._check(scope)
            body = await self._body(receive, Headers(scope=scope))
        except HttpError as refused:
            await refusal(refused)(scope, receive, send_safe)
            return
        came = False

        async def receive_whole() -> Message:
            nonlocal came
            if came:
                return await receive()  # the client's disconnect, which ends a stream
            came = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, receive_whole, send_safe)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name.lower() not in self._hosts and scope["path"] not in HEALTH:
            raise HttpError(
                400, "host", host, f"one of {', '.join(self._hosts)}, in the Host header"
            )
        client = scope.get("client") or ("local", 0)
        self._rates.count(client[0], time.monotonic())

    async def _body(self, receive: Receive, headers: Headers) -> bytes:
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > self._limits.body:
            raise self._large()
        try:
            return await asyncio.wait_for(self._read(receive), self._limits.body_seconds)
        except asyncio.TimeoutError:  # another class before Python 3.11
            message = f"the body was not received within {self._limits.body_seconds:.0f} s"
            raise HttpError(408, message=message) from None

    async def _read(self, receive: Receive) -> bytes:
        body = b""
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return body
            body += bytes(message.get("body", b""))
            if len(body) > self._limits.body:
                raise self._large()
            if not message.get("more_body"):
                return body

    def _large(self) -> HttpError:
        return HttpError(413, message=f"the body may have at most {self._limits.body} bytes")
