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

LIMIT = 60.0  # seconds without data from the server
TRIES = 3  # attempts to submit; the key makes them one job


class ServerError(Exception):
    """A request that the server rejected.

    status  the HTTP status, or 0 if the server did not respond
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow no redirect, so that no other address gets the token."""


class Client:
    """A client of the REST interface. All methods raise ServerError.

    Values are the JSON of docs/scheduler-api.md.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        context = ssl.create_default_context(cafile=access.ca or None)
        # No proxy of the environment gets the token either.
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            urllib.request.HTTPSHandler(context=context),
            _NoRedirects,
        )

    @classmethod
    def from_environment(cls, address: str = "") -> Client:
        """Connect with the settings of access_read. Raises AccessError."""
        return cls(access_read(address))

    def submit(self, command: Sequence[str], key: str = "", **fields: Any) -> Any:
        """Submit a job, and return it. A second submission with the same key returns the same
        job."""
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
        """Return jobs, the newest first: all jobs, the jobs in a state, or the "active" jobs."""
        found: list[Any] = []
        query = f"&state={state}" if state else ""
        before = 0
        while before is not None:
            page = self.ask("GET", f"/v1/jobs?limit=1000&before={before}{query}")
            found += page["jobs"]
            before = page["next"]
        return found

    def job(self, job: int) -> Any:
        """Return a job."""
        return self.ask("GET", f"/v1/jobs/{job}")

    def scale(self, job: int, least: int, most: int) -> Any:
        """Change a job's sizes."""
        return self.ask("PATCH", f"/v1/jobs/{job}", {"min": least, "max": most})

    def act(self, job: int, action: str) -> Any:
        """Cancel, pause or resume a job."""
        return self.ask("POST", f"/v1/jobs/{job}/{action}")

    def overview(self) -> Any:
        """Return the slots, jobs and tenants."""
        return self.ask("GET", "/v1/overview")

    def clear(self, host: str) -> None:
        """Remove the mark of a host where an audit has found a worker that computed wrongly."""
        self.ask("POST", "/v1/suspects/clear", {"host": host})

    def logs(self, job: int) -> Iterator[Any]:
        """Yield the logs of a job so far, in messages {"log": name, "text": lines}."""
        for name in self.ask("GET", f"/v1/jobs/{job}/logs")["logs"]:
            offset, text = 0, "..."
            while text:
                path = f"/v1/jobs/{job}/logs/{name}?offset={offset}"
                text, offset = self.ask("GET", path).values()
                if text:
                    yield {"log": name, "text": text}

    def follow(self, job: int) -> Iterator[Any]:
        """Yield the logs as they grow, until the job has ended; then yield {"state": its state}."""
        return self.stream(f"/v1/jobs/{job}/logs/stream")

    def stream(self, path: str) -> Iterator[Any]:
        """Yield the data of server-sent events."""
        with self._open("GET", path) as answer:
            try:
                for line in answer:
                    name, _, value = line.decode().rstrip("\n").partition(": ")
                    if name == "data":
                        yield json.loads(value)
            except (OSError, http.client.HTTPException) as error:
                raise self._silent(error) from None

    def ask(self, method: str, path: str, body: Any = None, headers: Any = None) -> Any:
        """Send a request, and return the server's answer, see /v1/openapi.json."""
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
        return ServerError(
            0, f"{self._access.address} does not answer: {why}; is `ddl serve` running?"
        )
