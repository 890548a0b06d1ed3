# SPDX-License-Identifier: Apache-2.0
"""Authentication: by a bearer token, or by a browser's session, which stands for a token.

A session's cookie holds a random number. The token itself stays in this process's memory, so that a
revoked token also ends its sessions. Sessions do not survive a restart.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from ddl_scheduler.base.database import Database
from ddl_scheduler.base.store import ROLES
from ddl_scheduler.web.errors import HttpError
from ddl_scheduler.web.limits import Limits, Rates

COOKIE = "ddl_session"
CSRF = "x-csrf-token"
SAFE = ("GET", "HEAD")


@dataclass(frozen=True)
class Caller:
    """The caller of a request."""

    tenant: str
    role: str
    token: str
    csrf: str = ""  # the CSRF token of a session

    def may(self, role: str) -> bool:
        """Return True if the caller has this role or a higher one."""
        return ROLES.index(self.role) >= ROLES.index(role)

    @property
    def sees(self) -> str | None:
        """The tenant whose jobs this caller may see, or None for all."""
        return None if self.role == "admin" else self.tenant


@dataclass(frozen=True)
class _Session:
    token: str
    csrf: str
    ends: float


class Sessions:
    """The sessions of browsers, and the lookup of callers."""

    def __init__(self, database: Database, limits: Limits, secure: bool) -> None:
        self._database, self._limits, self._secure = database, limits, secure
        self._rates = Rates(limits.rate, limits.burst)
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    async def find(self, request: Request) -> Caller | None:
        """Return the caller of a request, or None if it has neither a token nor a session. Raises
        HttpError if the token is invalid, the rate too high, or the CSRF token missing."""
        header = request.headers.get("authorization")
        session = self._session(request)
        if header is not None:
            kind, _, token = header.partition(" ")
            if kind.lower() != "bearer" or not token.strip():
                raise no_token("the Authorization header is not of the form 'Bearer TOKEN'")
            token = token.strip()
        elif session:
            token = session.token
        else:
            return None
        caller = await self.look_up(token, session.csrf if session and header is None else "")
        if caller is None:
            raise no_token("the token is unknown or was revoked")
        self._rates.count(hashlib.sha256(token.encode()).hexdigest(), time.monotonic())
        if caller.csrf and request.method not in SAFE:
            self.check_csrf(caller, request.headers.get(CSRF, ""))
        return caller

    async def look_up(self, token: str, csrf: str = "") -> Caller | None:
        """Return the caller that has this token, or None if the token is not valid."""
        found = await self._database.call(lambda store: store.token_find(token))
        return Caller(*found, token, csrf) if found else None

    def check_csrf(self, caller: Caller, given: str) -> None:
        """Check that a change comes from our own page. Raises HttpError."""
        if not hmac.compare_digest(given.encode(), caller.csrf.encode()):
            raise HttpError(
                403,
                message=f"a browser's request to change something needs the page's {CSRF} header",
            )

    def begin(self, token: str, response: Response) -> None:
        """Start a session of this token."""
        number = secrets.token_urlsafe(32)
        ends = time.monotonic() + self._limits.session_seconds
        self._sessions[_hash(number)] = _Session(token, secrets.token_urlsafe(32), ends)
        while len(self._sessions) > self._limits.sessions:
            self._sessions.popitem(last=False)
        response.set_cookie(
            COOKIE, number, httponly=True, samesite="strict", secure=self._secure, path="/"
        )

    def end(self, request: Request, response: Response) -> None:
        """End the session of this request."""
        self._sessions.pop(_hash(request.cookies.get(COOKIE, "")), None)
        response.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=self._secure)

    def _session(self, request: Request) -> _Session | None:
        key = _hash(request.cookies.get(COOKIE, ""))
        found = self._sessions.get(key)
        if found and found.ends < time.monotonic():
            del self._sessions[key]
            return None
        return found


def no_token(message: str) -> HttpError:
    """Return the error that describes how to authenticate."""
    text = f"{message}; send the header 'Authorization: Bearer TOKEN'"
    return HttpError(401, message=text, headers={"www-authenticate": "Bearer"})


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
