# SPDX-License-Identifier: Apache-2.0
"""/healthz and /readyz of a real `ddl serve`, without a token."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest
from serving import Serving, wait_for
from web_site import Site


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    made = Serving(tmp_path)
    yield made
    made.close()


def probe(serving: Serving, path: str, host: str = "10.1.2.3:8470") -> tuple[int, str]:
    log = serving.folder / "serve.log"
    (port,) = wait_for(
        lambda: re.findall(r"listening on http://127\.0\.0\.1:(\d+)\n", log.read_text())
    )
    with closing(HTTPConnection("127.0.0.1", int(port), timeout=60)) as connection:
        connection.request("GET", path, headers={"host": host})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_probes_need_neither_token_nor_host_name(serving: Serving) -> None:
    job = serving.submit("--steps", 1, name="secretname")
    assert probe(serving, "/healthz") == (200, "ok\n")
    assert probe(serving, "/readyz") == (200, "ok\n")
    for path in ("/readyz/", "/metrics", f"/v1/jobs/{job}", "/"):
        assert probe(serving, path)[0] == 400, path  # other paths need a known host


LOCKED = "the store cannot be written"
STALLED = "the planner does not run"


def test_readyz_reports_stalled_planner(tmp_path: Path) -> None:
    with closing(Site(tmp_path)) as site:
        assert site.ask("GET", "/readyz").text == "ok\n"
        site.cluster.planner_age = 16.0
        answer = site.ask("GET", "/readyz")
        assert (answer.status, answer.text) == (503, f"{STALLED}\n")


@pytest.mark.parametrize(
    "said", [LOCKED, pytest.param(f"{LOCKED}; {STALLED}", marks=pytest.mark.slow)]
)
def test_readyz_reports_locked_store(serving: Serving, said: str) -> None:
    """The planner, which waits as well, has stalled after 15 seconds."""
    assert probe(serving, "/readyz") == (200, "ok\n")
    other = sqlite3.connect(serving.path, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")  # like a hanging backup
        wait_for(lambda: probe(serving, "/readyz") == (503, f"{said}\n"), said)
        assert probe(serving, "/healthz") == (200, "ok\n")
        other.execute("ROLLBACK")
    finally:
        other.close()
    wait_for(lambda: probe(serving, "/readyz") == (200, "ok\n"), "ready again")
