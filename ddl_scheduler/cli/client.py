# SPDX-License-Identifier: Apache-2.0
"""A client of `ddl serve` for programs.

client = Client.from_environment()
job = client.submit(["train.py", "--lr", "0.1"], max=8, folder="/home/me/project")
for message in client.follow(job["id"]):
    print(message)
print(client.job(job["id"])["state"])
"""

from __future__ import annotations

import http.client
import json
import secrets
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

from ddl_scheduler.cli.access import Access, access_read

LIMIT = 60.0  # seconds without anything from the server
TRIES = 3  # of a submission, which is the same job each time


class ServerError(Exception):
    """What the server refuses. status: of HTTP; 0: it did not answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """The token goes to no other address."""


class Client:
    """All methods raise ServerError. Values are the JSON of docs/scheduler-api.md."""

    def __init__(self, access: Access) -> None:
        self._access = access
        context = ssl.create_default_context(cafile=access.ca or None)
        # No proxy of the environment gets to see the token either.
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=context),
            _NoRedirects,
        )

    @classmethod
    def from_environment(cls, address: str = "") -> Client:
        """See access_read. Raises AccessError."""
        return cls(access_read(address))

    def submit(self, command: Sequence[str], key: str = "", **fields: Any) -> Any:
        """The new job. With a key of one's own, a repeated submission is the same job."""
        headers = {"idempotency-key": key or secrets.token_hex(16)}
        spec = {"command": list(command), **fields}
        for _ in range(TRIES - 1):
            try:
                return self.ask("POST", "/v1/jobs", spec, headers)
            except ServerError as error:
                if error.status:
                    raise
        return self.ask("POST", "/v1/jobs", spec, headers)

    def jobs(self, state: str = "") -> list[Any]:
        """The newest first: those in a state, "active", or all."""
        found: list[Any] = []
        query = f"&state={state}" if state else ""
        before = 0
        while before is not None:
            page = self.ask("GET", f"/v1/jobs?limit=1000&before={before}{query}")
            found += page["jobs"]
            before = page["next"]
        return found

    def job(self, job: int) -> Any:
        """One job."""
        return self.ask("GET", f"/v1/jobs/{job}")

    def scale(self, job: int, least: int, most: int) -> Any:
        """Give it other sizes."""
        return self.ask("PATCH", f"/v1/jobs/{job}", {"min": least, "max": most})

    def act(self, job: int, action: str) -> Any:
        """cancel, pause or resume it."""
        return self.ask("POST", f"/v1/jobs/{job}/{action}")

    def overview(self) -> Any:
        """Slots, jobs and tenants."""
        return self.ask("GET", "/v1/overview")

    def clear(self, host: str) -> None:
        """Remove the mark of a host where an audit has found a wrong worker."""
        self.ask("POST", "/v1/suspects/clear", {"host": host})

    def logs(self, job: int) -> Iterator[Any]:
        """What there is of its logs: messages {"log": name, "text": lines}."""
        for name in self.ask("GET", f"/v1/jobs/{job}/logs")["logs"]:
            offset, text = 0, "..."
            while text:
                path = f"/v1/jobs/{job}/logs/{name}?offset={offset}"
                text, offset = self.ask("GET", path).values()
                if text:
                    yield {"log": name, "text": text}

    def follow(self, job: int) -> Iterator[Any]:
        """The same, as they grow, until the job has ended: then {"state": how}."""
        return self.stream(f"/v1/jobs/{job}/logs/stream")

    def stream(self, path: str) -> Iterator[Any]:
        """The data of server-sent events."""
        with self._open("GET", path) as answer:
            try:
                for line in answer:
                    name, _, value = line.decode().rstrip("\n").partition(": ")
                    if name == "data":
                        yield json.loads(value)
            except (OSError, http.client.HTTPException) as error:
                raise self._silent(error) from None

    def ask(self, method: str, path: str, body: Any = None, headers: Any = None) -> Any:
        """What the interface answers, see /v1/openapi.json."""
        with self._open(method, path, body, headers) as answer:
            try:
                return json.loads(answer.read() or "null")
            except (OSError, http.client.HTTPException) as error:
                raise self._silent(error) from None

    def _open(self, method: str, path: str, body: Any = None, headers: Any = None) -> Any:
        sent = {"authorization": f"Bearer {self._access.token}", **(headers or {})}
        data = None
        if body is not None:
            data, sent["content-type"] = json.dumps(body).encode(), "application/json"
        url = self._access.address.rstrip("/") + path
        request = urllib.request.Request(url, data, sent, method=method)
        try:
            return self._opener.open(request, timeout=LIMIT)
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode(errors="replace")
            try:
                text = json.loads(text)["error"]["message"]
            except (ValueError, KeyError, TypeError):
                text = f"HTTP {error.code}: {text[:200]}"
            raise ServerError(error.code, text) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._silent(error) from None

    def _silent(self, error: Exception) -> ServerError:
        why = getattr(error, "reason", error)
        return ServerError(0, f"{self._access.address} does not answer: {why}; is `ddl serve` up?")
