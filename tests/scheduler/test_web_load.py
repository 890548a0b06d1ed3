# SPDX-License-Identifier: Apache-2.0
"""12 000 requests of mixed good and bad input, 200 a second where the machine is quick enough: no
5xx, and nothing lost. The rate that was reached is printed. `make test-web`."""

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path

import pytest
from web_site import Site

from ddl_scheduler.base.store import Store, StoreError
from ddl_scheduler.web.limits import Limits

RATE, SECONDS, THREADS = 200, 60, 8
GOOD = '{"command": ["train.py", "%s"], "max": 4}'
BAD = (
    *('{"command": []}', '{"command": ["x"], "min": 9, "max": 1}', "{", "[]", '"\\ud800"', "1e999"),
    *('{"command": ["\\u0000"]}', '{"command": ["x"], "cores": 1}', "x" * 70000),
)
PATHS = (
    *("/v1/jobs", "/v1/jobs?limit=x", "/v1/slots", "/v1/tenants", "/v1/events?after=5", "/metrics"),
    *("/v1/overview", "/v1/jobs/1", "/v1/jobs/999999", "/v1/jobs/%00", "/v1/nothing", "/jobs/1"),
    *("/v1/jobs/1/logs/job", "/v1/jobs/1/report", "/login", "/v1/openapi.json", "//", "/%ff"),
)


class Client:
    """One of several clients at the same time, each with its part of the rate."""

    def __init__(self, site: Site, number: int, began: float) -> None:
        self.site, self.number, self.began = site, number, began
        self.random = random.Random(number)
        self.connection = HTTPConnection("127.0.0.1", site.port, timeout=60)
        self.statuses: Counter[int] = Counter()
        self.accepted: dict[str, set[int]] = {}  # the acknowledged jobs, by key

    def run(self) -> None:
        interval = THREADS / RATE
        for turn in range(SECONDS * RATE // THREADS):
            late = self.began + turn * interval - time.monotonic()
            if late > 0:
                time.sleep(late)
            self.ask(turn)
        self.connection.close()

    def ask(self, turn: int) -> None:
        kind = self.random.random()
        token = "wrong" if kind < 0.1 else self.site.tokens[("user", "other")[self.number % 2]]
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        if kind < 0.5:
            self.send("GET", self.random.choice(PATHS), None, headers)
        elif kind < 0.7:
            self.send("POST", "/v1/jobs", self.random.choice(BAD), headers)
        elif kind < 0.9:
            key = f"{self.number}-{turn // 3}"  # each is requested up to three times
            headers["idempotency-key"] = key
            answer = self.send("POST", "/v1/jobs", GOOD % key, headers)
            if answer:
                self.accepted.setdefault(key, set()).add(answer)
        else:
            job = self.random.randrange(1, 200)
            action = self.random.choice(("pause", "resume", "cancel", "explode"))
            self.send("POST", f"/v1/jobs/{job}/{action}", None, headers)

    def send(self, method: str, path: str, body: str | None, headers: dict[str, str]) -> int:
        """Return the number of the job that was submitted; 0 if none was."""
        self.connection.request(method, path, body, headers)
        answer = self.connection.getresponse()
        answer.read()
        self.statuses[answer.status] += 1
        submitted = answer.status in (200, 201) and method == "POST" and path == "/v1/jobs"
        return int((answer.getheader("location") or "0").rpartition("/")[2]) if submitted else 0


@pytest.mark.slow
def test_200_requests_a_second_for_a_minute(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = Site(tmp_path, Limits(rate=150, burst=300))
    stop = threading.Event()

    def schedule() -> None:
        """Meanwhile, another writer writes to the store, like the scheduling loop."""
        store = Store(site.path)
        while not stop.wait(0.5):
            job = next((each.id for each in store.jobs("waiting")), None)
            with suppress(StoreError):  # the job was cancelled meanwhile
                store.plan_write({job: ("h1.0",)} if job else {}, time.time())
        store.close()

    scheduling = threading.Thread(target=schedule)
    scheduling.start()
    began = time.monotonic()
    clients = [Client(site, number, began) for number in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(Client.run, clients))
    seconds = time.monotonic() - began
    stop.set()
    scheduling.join()
    statuses = sum((client.statuses for client in clients), Counter[int]())
    count = sum(statuses.values())
    with capsys.disabled():
        print(f"\n{count} requests in {seconds:.1f} s, {count / seconds:.0f} a second; by status:")
        print(dict(sorted(statuses.items())))
    try:
        assert count == RATE * SECONDS  # each was answered
        assert max(statuses) < 500, statuses
        assert {200, 201, 400, 401, 404, 409, 413} <= set(statuses), statuses
        stored = {record.key: record.id for record in site.store.jobs()}
        told = {key: jobs for client in clients for key, jobs in client.accepted.items()}
        assert told == {key: {job} for key, job in stored.items()}
        assert site.cluster.woken >= len(stored)
    finally:
        site.close()
