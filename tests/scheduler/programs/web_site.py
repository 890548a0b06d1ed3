# SPDX-License-Identifier: Apache-2.0
"""The scheduler's web app on a real port, with a real store and a simulated cluster."""

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from conftest import free_port

from ddl_scheduler.base.store import Store
from ddl_scheduler.web.app import make_app
from ddl_scheduler.web.limits import Limits
from ddl_scheduler.web.server import make_server


class Place(NamedTuple):
    id: str
    host: str
    state: str
    job: int | None


@dataclass
class FakeCluster:
    """Stands for the scheduling loop: the test sets what the app is told about jobs and slots."""

    reports: dict[int, dict[str, Any]] = field(default_factory=dict)
    places: list[tuple[str, str, str, int | None]] = field(default_factory=list)
    woken: int = 0
    planner_age: float = 0.0

    def live(self, job: int) -> dict[str, Any] | None:
        return self.reports.get(job)

    def slots(self) -> list[Place]:
        return [Place(*each) for each in self.places]

    def wake(self) -> None:
        self.woken += 1


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


class Site:
    """A served app. Tokens: viewer, user, admin of tenant `a`; other: a user of tenant `b`."""

    def __init__(
        self,
        folder: Path,
        limits: Limits | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
    ) -> None:
        self.path = folder / "store.db"
        self.store = Store(self.path)  # the test's own, for this thread
        self.cluster = FakeCluster()
        for tenant in ("a", "b"):
            self.store.tenant_put(tenant, cap=8)
        self.tokens = {
            role: self.store.token_create("a", role) for role in ("viewer", "user", "admin")
        }
        self.tokens["other"] = self.store.token_create("b", "user")
        cluster = self.cluster
        app = make_app(
            *(self.path, cluster.live, cluster.slots, cluster.wake),
            secure=certificate is not None,
            limits=limits,
            planner_age=lambda: cluster.planner_age,
        )
        self.port = free_port()
        self._server = make_server(app, "127.0.0.1", self.port, certificate, key)
        self._thread = threading.Thread(target=self._server.run, name="web")
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), "the server has not started"
            time.sleep(0.01)
        self.url = f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(60)
        assert not self._thread.is_alive(), "the server does not end"
        self.store.close()

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        role: str | None = "user",
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
    ) -> Answer:
        sent = {"authorization": f"Bearer {self.tokens[role]}"} if role else {}
        if body is not None:
            data = json.dumps(body).encode()
        if data is not None:
            sent["content-type"] = "application/json"
        request = urllib.request.Request(
            self.url + path, data, {**sent, **(headers or {})}, method=method
        )
        try:
            with _OPENER.open(request, timeout=60) as answer:
                return Answer(answer.status, dict(answer.headers), answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, dict(error.headers), error.read().decode())

    def submit(self, role: str = "user", **fields: object) -> int:
        answer = self.ask("POST", "/v1/jobs", {"command": ["train.py"], **fields}, role=role)
        assert answer.status == 201, answer.text
        return int(answer.json["id"])
