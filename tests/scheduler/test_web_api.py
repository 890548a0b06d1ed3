# SPDX-License-Identifier: Apache-2.0
"""The REST interface over HTTP, with a real store. FakeCluster simulates the scheduling loop."""

import json
import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from web_site import Site

from ddl_elastic.base import environment
from ddl_scheduler.base.logs import CHUNK, log_folder
from ddl_scheduler.web.limits import Limits
from ddl_scheduler.web.server import check_address

pytestmark = pytest.mark.pure

JOB = {"command": ["train.py", "--lr", "0.1"], "min": 1, "max": 4}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("web"), Limits(rate=1e6, burst=1e6, address_rate=1e6))
    yield made
    made.close()


# ---- jobs ----


def test_a_job_is_submitted_scaled_paused_resumed_and_cancelled(site: Site) -> None:
    woken = site.cluster.woken
    answer = site.ask("POST", "/v1/jobs", {**JOB, "tier": 2, "name": "digits"})
    assert answer.status == 201
    job = answer.json["id"]
    assert answer.headers["location"] == f"/v1/jobs/{job}"
    assert (answer.json["state"], answer.json["tier"], answer.json["max"]) == ("waiting", 2, 4)
    assert answer.json["reason"] == "not planned yet"
    scaled = site.ask("PATCH", f"/v1/jobs/{job}", {"min": 2, "max": 3})
    assert (scaled.json["min"], scaled.json["max"]) == (2, 3)
    for action, state in (("pause", "paused"), ("resume", "waiting"), ("cancel", "cancelled")):
        assert site.ask("POST", f"/v1/jobs/{job}/{action}").json["state"] == state
    assert site.cluster.woken == woken + 5
    assert site.store.job_find(job).state == "cancelled"  # type: ignore[union-attr]
    texts = [event["text"] for event in site.ask("GET", f"/v1/events?job={job}").json["events"]]
    assert texts == [
        *("submitted", "scaled to 2:3", "paused: requested by a", "waiting: requested by a"),
        "cancelled: requested by a",
    ]


def test_the_same_key_is_the_same_job_even_at_once_and_scaled(site: Site) -> None:
    def submit(_: int) -> tuple[int, int]:
        answer = site.ask("POST", "/v1/jobs", JOB, headers={"idempotency-key": "once"})
        return answer.status, answer.json["id"]

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(submit, range(16)))
    assert len({job for _, job in answers}) == 1
    assert sorted(status for status, _ in answers) == [200] * 15 + [201]
    job = answers[0][1]
    assert site.ask("PATCH", f"/v1/jobs/{job}", {"min": 0, "max": 1}).status == 200
    assert submit(0) == (200, job)
    other = site.ask("POST", "/v1/jobs", {**JOB, "tier": 1}, headers={"idempotency-key": "once"})
    assert other.status == 409 and "with other values" in other.text
    same = site.ask("POST", "/v1/jobs", JOB, role="other", headers={"idempotency-key": "once"})
    assert same.status == 201  # keys of another tenant are different keys


def test_jobs_are_listed_by_pages(site: Site) -> None:
    jobs = [site.submit("other") for _ in range(5)]
    first = site.ask("GET", "/v1/jobs?limit=3&state=waiting", role="other").json
    assert [job["id"] for job in first["jobs"]] == jobs[:-4:-1]
    then = site.ask("GET", f"/v1/jobs?limit=100&before={first['next']}", role="other").json
    assert [job["id"] for job in then["jobs"]][:2] == jobs[1::-1]
    assert then["next"] is None


def test_what_the_cluster_tells_is_shown(site: Site) -> None:
    job, waiting = site.submit(), site.submit()
    site.store.plan_write({job: ("h1.0", "h1.1")}, time.time())
    site.cluster.places = [
        ("h1.0", "h1", "used", job),
        ("h1.1", "h1", "used", job),
        ("h1.2", "h1", "free", None),
    ]
    report = {
        "steps": 12,
        "steps_total": 100,
        "loss": float("nan"),
        "samples_per_second": 50.0,
        "seconds_per_step": 0.5,
        "workers": {0: {"state": "running", "pid": 7, "shares": 4}, 1: {"state": "ended"}},
        "events": [{"kind": "died", "member": 1, "time": 1.0}],
    }
    site.cluster.reports = {job: report, waiting: {"waiting": "needs 9 slots"}}
    try:
        found = site.ask("GET", f"/v1/jobs/{job}").json
        assert (found["slots"], found["step"], found["loss"]) == (["h1.0", "h1.1"], 12, None)
        assert site.ask("GET", f"/v1/jobs/{waiting}").json["reason"] == "needs 9 slots"
        slots = site.ask("GET", "/v1/slots").json["slots"]
        assert [slot["job"] for slot in slots] == [job, job, None]
        others = site.ask("GET", "/v1/slots", role="other").json["slots"]
        assert [(slot["state"], slot["job"]) for slot in others[:2]] == [("used", None)] * 2
        full = site.ask("GET", f"/v1/jobs/{job}/report").json
        assert full["live"]["workers"]["0"]["pid"] == 7
        assert full["events"][-1]["text"].startswith("running")
        metrics = site.ask("GET", "/metrics").text
        assert f'ddl_job_steps_total{{job="{job}",name="train.py",tenant="a"}} 12' in metrics
        assert f'ddl_job_workers{{job="{job}",name="train.py",tenant="a"}} 1' in metrics
        assert f'ddl_job_loss{{job="{job}"' not in metrics  # it is not a number
        overview = site.ask("GET", "/v1/overview").json
        assert {"slots", "jobs", "tenants", "suspects", "problem"} == set(overview)
        # The data that a job has reported remains after its end.
        _wait(lambda: site.ask("GET", f"/v1/jobs/{job}/report").json["history"])
        site.cluster.reports = {}
        last = site.ask("GET", f"/v1/jobs/{job}/report").json
        assert last["live"]["steps"] == 12
        assert last["history"][0] == {
            "time": last["history"][0]["time"],
            "step": 12,
            "loss": None,
            "workers": 1,
            "seconds_per_step": 0.5,
        }
    finally:
        site.cluster.reports, site.cluster.places = {}, []
        site.store.job_move(job, "cancelled", time.time())


# ---- roles ----


def test_a_tenant_sees_its_own_jobs_only(site: Site) -> None:
    job = site.submit("user")
    for method, path, body in (
        ("GET", "", None),
        ("GET", "/report", None),
        ("GET", "/report/stream", None),
        ("GET", "/logs", None),
        ("GET", "/logs/job", None),
        ("GET", "/logs/stream", None),
        ("PATCH", "", {"min": 1, "max": 2}),
        ("POST", "/cancel", None),
        ("POST", "/pause", None),
        ("POST", "/resume", None),
    ):
        answer = site.ask(method, f"/v1/jobs/{job}{path}", body, role="other")
        nothing = site.ask(method, f"/v1/jobs/{10**9}{path}", body, role="other")
        assert answer.status == nothing.status == 404
        assert answer.text == nothing.text.replace(str(10**9), str(job))
    for path in ("/v1/jobs?limit=1000", "/v1/overview"):
        assert {each["tenant"] for each in site.ask("GET", path, role="other").json["jobs"]} <= {
            "b"
        }
    events = site.ask("GET", "/v1/events?limit=1000", role="other").json["events"]
    assert job not in {each["job"] for each in events}
    assert 'tenant="a"' not in site.ask("GET", "/metrics", role="other").text
    assert site.ask("GET", f"/v1/events?job={job}", role="other").json == {"events": []}
    assert site.ask("GET", f"/v1/jobs/{job}", role="viewer").status == 200
    tenants = site.ask("GET", "/v1/tenants", role="other").json["tenants"]
    assert [tenant["name"] for tenant in tenants] == ["b"]
    assert len(site.ask("GET", "/v1/tenants", role="admin").json["tenants"]) >= 2
    assert site.ask("POST", f"/v1/jobs/{site.submit('other')}/cancel", role="admin").status == 200


def test_an_admin_gives_and_takes_rights(site: Site) -> None:
    made = site.ask("PUT", "/v1/tenants/c", {"cap": 4, "guarantee": 2, "weight": 2}, role="admin")
    assert {"name": "c", "cap": 4, "guarantee": 2, "weight": 2.0}.items() <= made.json["tenants"][
        -1
    ].items()
    token = site.ask("POST", "/v1/tenants/c/tokens", {"role": "viewer"}, role="admin")
    assert token.status == 201 and token.headers["cache-control"] == "no-store"
    site.tokens["c"] = token.json["token"]
    assert site.ask("GET", "/v1/jobs", role="c").json == {"jobs": [], "next": None}
    revoked = site.ask("POST", "/v1/tokens/revoke", token.json, role="admin")
    assert revoked.status == 204
    assert site.ask("GET", "/v1/jobs", role="c").status == 401


def test_marked_host_is_shown_until_an_admin_clears_it(site: Site) -> None:
    job, text = site.submit(), "rank 1 on h7 (pid 5) computes wrongly"
    site.store.host_mark("h7", 10.0, job, text)

    def suspects(role: str) -> Any:
        return site.ask("GET", "/v1/overview", role=role).json["suspects"]

    marked = {"host": "h7", "time": 10.0, "job": job, "text": text}
    assert suspects("user") == suspects("admin") == [marked]
    assert suspects("other") == [{**marked, "job": None, "text": None}]
    assert 'ddl_host_suspect{host="h7"} 1' in site.ask("GET", "/metrics").text
    clear, body = "/v1/suspects/clear", {"host": "h7"}
    assert site.ask("POST", clear, body, role="user").status == 403
    assert site.ask("POST", clear, body, role="admin").status == 204
    assert suspects("admin") == []
    refused = site.ask("POST", clear, body, role="admin")
    assert refused.status == 409 and "the host h7 has no mark" in refused.text
    site.store.host_mark("h7", 10.0, job, text)  # the same finding, read again after a restart
    assert suspects("admin") == []
    site.store.host_mark("h7", 11.0, job, text)
    assert suspects("admin") == [{**marked, "time": 11.0}]


def test_a_revoked_token_ends_its_streams(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddl_scheduler.web.streams.ALIVE", 0.0)
    site.tokens["short"] = site.store.token_create("a", "viewer")
    lines = _stream(site, "/v1/events/stream", "short")
    assert next(lines) == ": begins"
    site.store.token_revoke(site.tokens["short"])
    assert all(line in ("", ": alive") for line in lines)


# ---- errors ----

REFUSED: list[tuple[int, str, str, Any, str | None, str]] = [
    # status, method, path, body, role, parts of the message
    (400, "POST", "/v1/jobs", {"command": []}, "user", "command is '0 items'"),
    (400, "POST", "/v1/jobs", {**JOB, "min": 5}, "user", "min is 5; allowed: at most max"),
    (400, "POST", "/v1/jobs", {**JOB, "cores": 5}, "user", "only the fields command, min"),
    (400, "POST", "/v1/jobs", [], "user", "body is []; allowed: object"),
    (400, "PATCH", "/v1/jobs/1", {"min": 1}, "user", "max is 'missing'"),
    (400, "GET", "/v1/jobs?limit=0", None, "user", "parameter limit is 0; allowed: integer"),
    (400, "GET", "/v1/jobs?limit=1e3", None, "user", "parameter limit is '1e3'"),
    (400, "GET", "/v1/jobs?limit=1&limit=2", None, "user", "allowed: one value"),
    (400, "GET", "/v1/jobs?state=dead", None, "user", "waiting or running or paused"),
    (400, "GET", "/v1/jobs?token=x", None, "user", "parameter token is 'x'; allowed: only"),
    (400, "GET", "/v1/jobs/0", None, "user", "job is 0"),
    (400, "GET", "/v1/jobs/99999999999999999999", None, "user", "job is '9999"),
    (400, "GET", "/v1/jobs/x", None, "user", "job is 'x'; allowed: integer"),
    (400, "GET", "/v1/jobs/1/logs/passwd", None, "user", "log is 'passwd'; allowed: string: job"),
    (400, "PUT", "/v1/tenants/a%0Ab", {}, "admin", "tenant is"),
    (400, "PUT", "/v1/tenants/d", {"cap": 1, "guarantee": 2}, "admin", "at most cap"),
    (400, "POST", "/v1/tenants/a/tokens", {"role": "root"}, "admin", "viewer or user or admin"),
    (401, "GET", "/v1/jobs", None, None, "send the header 'Authorization: Bearer TOKEN'"),
    (401, "GET", "/metrics", None, None, "the request has no token"),
    (403, "POST", "/v1/jobs", JOB, "viewer", "needs the role user; the token's is viewer"),
    (403, "PUT", "/v1/tenants/d", {}, "user", "needs the role admin"),
    (404, "GET", "/v1/job", None, "user", "/v1/openapi.json lists"),
    (404, "GET", "/v1/jobs/1/logs/..%2f..%2fstore.db", None, "user", "/v1/openapi.json lists"),
    (404, "GET", "/v1/jobs/999999", None, "user", "job 999999 does not exist"),
    (404, "POST", "/v1/tenants/zz/tokens", {"role": "user"}, "admin", "tenant 'zz' does not exist"),
    (405, "DELETE", "/v1/jobs", None, "user", "the method DELETE is not supported"),
    (409, "POST", "/v1/jobs/1/resume", None, "admin", "not paused"),
    (413, "POST", "/v1/jobs", {"command": ["x" * 70000]}, "user", "at most 65536 bytes"),
]


@pytest.mark.parametrize(
    ("status", "method", "path", "body", "role", "message"),
    REFUSED,
    ids=[f"{case[0]} {case[1]} {case[2]}" for case in REFUSED],
)
def test_bad_input_is_refused_and_named(
    site: Site, status: int, method: str, path: str, body: Any, role: str | None, message: str
) -> None:
    if not site.store.jobs():
        site.submit()
    answer = site.ask(method, path, body, role=role)
    assert answer.status == status, answer.text
    assert message in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("headers", "data", "status", "message"),
    [
        ({"authorization": "Bearer wrong"}, None, 401, "is unknown or was revoked"),
        ({"authorization": "Basic eDp5"}, None, 401, "not of the form"),
        ({"authorization": "Bearer "}, None, 401, "not of the form"),
        ({"authorization": "Bearer \xff\xfe"}, None, 401, "is unknown"),
        ({"content-type": "text/plain"}, b"{}", 415, "application/json"),
        ({}, b"{", 400, "the body is not JSON"),
        ({}, b"\xff\xfe\xfa", 400, "the body is not JSON"),
        ({}, b'{"min": NaN}', 400, "NaN is not a JSON number"),
        ({}, b"[" * 60000, 400, "the body is not JSON"),
        ({}, b"1" * 60000, 400, "the body is not JSON"),
        ({"idempotency-key": "a b"}, b'{"command": ["x"]}', 400, "always names the same job"),
        ({"host": "evil.example"}, None, 400, "host is 'evil.example'"),
        ({"host": "127.0.0.1.evil.example"}, None, 400, "host is"),
    ],
)
def test_bad_headers_and_bodies_are_refused(
    site: Site, headers: dict[str, str], data: bytes | None, status: int, message: str
) -> None:
    method = "GET" if data is None else "POST"
    answer = site.ask(method, "/v1/jobs", headers=headers, data=data)
    assert answer.status == status, answer.text
    assert message in answer.json["error"]["message"]


def test_what_has_ended_is_not_changed(site: Site) -> None:
    job = site.submit()
    site.ask("POST", f"/v1/jobs/{job}/cancel")
    for method, path, body in (
        ("POST", "/cancel", None),
        ("POST", "/pause", None),
        ("POST", "/resume", None),
        ("PATCH", "", {"min": 1, "max": 1}),
    ):
        answer = site.ask(method, f"/v1/jobs/{job}{path}", body)
        assert answer.status == 409 and f"job {job} is cancelled" in answer.text


def test_limits_of_rate_streams_and_slow_bodies(tmp_path: Path) -> None:
    with closing(Site(tmp_path, Limits(rate=0.001, burst=3, streams=1, body_seconds=1.0))) as site:
        statuses = [site.ask("GET", "/v1/jobs").status for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]
        refused = site.ask("GET", "/v1/jobs")
        assert int(refused.headers["retry-after"]) > 100
        assert "at most 0.001 requests a second; wait" in refused.text
        assert site.ask("GET", "/v1/jobs", role="other").status == 200  # it has a rate of its own
        stream = _stream(site, "/v1/events/stream", "other")
        next(stream)
        assert "1 streams are open" in site.ask("GET", "/v1/events/stream", role="other").text
        stream.close()
        slow = (
            f"POST /v1/jobs HTTP/1.1\r\nHost: localhost:{site.port}\r\nContent-Length: 10\r\n"
            f"Authorization: Bearer {site.tokens['viewer']}\r\n\r\n{{"
        )
        with socket.create_connection(("127.0.0.1", site.port)) as connection:
            connection.sendall(slow.encode())
            assert b" 408 " in connection.recv(4096)
        chunked = slow.replace("Content-Length: 10", "Transfer-Encoding: chunked")[:-1]
        with socket.create_connection(("127.0.0.1", site.port)) as connection:
            connection.sendall(chunked.encode() + b"20000\r\n" + b"x" * 0x20000 + b"\r\n")
            assert b" 413 " in connection.recv(4096)


def test_streams_are_counted_when_asked_for(tmp_path: Path) -> None:
    """Streams that are opened at once count, too, and each tenant leaves some to others."""
    with closing(Site(tmp_path, Limits(streams=7, tenant_streams=4))) as site:
        statuses, connections = _open_streams(site, "user", 20)
        assert (statuses.count(200), statuses.count(429)) == (4, 16)
        refused = site.ask("GET", "/v1/events/stream").text
        assert "4 streams are open already by tenant a; close one first" in refused
        statuses, others = _open_streams(site, "other", 4)
        assert (statuses.count(200), statuses.count(429)) == (3, 1)
        for connection in connections:
            connection.close()
        deadline = time.monotonic() + 60
        while statuses != [200] * 4:  # until the server has noticed
            assert time.monotonic() < deadline
            statuses, connections = _open_streams(site, "user", 4)
            for connection in connections:
                connection.close()
            time.sleep(0.1)
        for connection in others:
            connection.close()


def _open_streams(
    site: Site, role: str, count: int, path: str = "/v1/events/stream"
) -> tuple[list[int], list[socket.socket]]:
    connections = [socket.create_connection(("127.0.0.1", site.port)) for _ in range(count)]
    head = (
        f"GET {path} HTTP/1.1\r\nHost: localhost:{site.port}\r\n"
        f"Authorization: Bearer {site.tokens[role]}\r\n\r\n"
    )
    for connection in connections:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(head.encode())
    return [int(connection.recv(64).split()[1]) for connection in connections], connections


def test_idle_connections_do_not_hinder_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment.allow_connections()
    monkeypatch.setattr("ddl_scheduler.web.connections.WAITING", 3.0)
    with closing(Site(tmp_path)) as site:
        stream = _stream(site, "/v1/events/stream", "user")
        next(stream)
        idle = []
        for number in range(1000):
            idle.append(socket.create_connection(("127.0.0.1", site.port)))
            if number % 2:
                idle[-1].sendall(b"GET / HTTP/1.1\r\nHost:")
        assert site.ask("GET", "/v1/overview").status == 200
        assert site.ask("GET", "/login", role=None).status == 200
        job = site.submit()
        while f'"job": {job}' not in next(stream):  # nor do they end a stream
            pass
        for connection in idle:
            connection.settimeout(30)
            with suppress(ConnectionResetError):
                assert connection.recv(100) == b""  # all are closed in the end
            connection.close()
        stream.close()


def test_client_that_does_not_read_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddl_scheduler.web.connections.STALLED", 1.0)
    with closing(Site(tmp_path, Limits(streams=1))) as site:
        job = site.submit()
        _log(site, job, "worker0", (b"y" * 999 + b"\n") * 20_000)
        statuses, stalled = _open_streams(site, "user", 1, f"/v1/jobs/{job}/logs/stream")
        assert statuses == [200]
        deadline = time.monotonic() + 60
        seen = []
        while 200 not in seen:
            assert time.monotonic() < deadline
            statuses, connections = _open_streams(site, "user", 1)
            seen += statuses
            connections[0].close()
            time.sleep(0.1)
        assert seen[0] == 429
        stalled[0].close()


def test_tokens_are_neither_logged_nor_stored(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    site.submit()
    site.ask("GET", "/v1/jobs?limit=x")
    site.ask("GET", "/v1/jobs", headers={"host": "evil.example"})
    stored = site.path.read_bytes() + site.path.with_name("store.db-wal").read_bytes()
    for token in site.tokens.values():
        assert token not in caplog.text
        assert token.encode() not in stored


# ---- logs and events ----


def _log(site: Site, job: int, name: str, data: bytes) -> Path:
    folder = log_folder(site.path, job)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.log"
    with path.open("ab") as file:
        file.write(data)
    return path


def test_logs_are_escaped_and_read_by_lines(site: Site) -> None:
    job = site.submit()
    assert site.ask("GET", f"/v1/jobs/{job}/logs").json == {"logs": []}
    _log(site, job, "job", b"began\n")
    _log(site, job, "worker10", b"ten\n")
    _log(site, job, "worker2", b"\x1b[2Jloss 1.5\r<script>\xff\nhalf")
    _log(site, job, "secret", b"not a log\n")
    names = site.ask("GET", f"/v1/jobs/{job}/logs").json["logs"]
    assert names == ["job", "worker2", "worker10"]
    first = site.ask("GET", f"/v1/jobs/{job}/logs/worker2").json
    assert first["text"] == "\\x1b[2Jloss 1.5\n<script>\N{REPLACEMENT CHARACTER}\n"
    path = f"/v1/jobs/{job}/logs/worker2?offset={first['next']}"
    assert site.ask("GET", path).json == {"text": "", "next": first["next"]}
    site.ask("POST", f"/v1/jobs/{job}/cancel")
    assert site.ask("GET", path).json["text"] == "half"  # nothing more will arrive
    assert site.ask("GET", f"/v1/jobs/{job}/logs/worker2?offset=99999").json["text"] == ""
    long = b"x" * (CHUNK + 10) + b"\n"
    _log(site, job, "worker3", long)
    one = site.ask("GET", f"/v1/jobs/{job}/logs/worker3").json
    two = site.ask("GET", f"/v1/jobs/{job}/logs/worker3?offset={one['next']}").json
    assert (one["text"] + two["text"]).encode() == long


def test_logs_do_not_leave_their_folder(site: Site, tmp_path: Path) -> None:
    job = site.submit()
    outside = tmp_path / "outside"
    outside.write_text("a secret\n")
    path = _log(site, job, "job", b"")
    path.unlink()
    path.symlink_to(outside)
    answer = site.ask("GET", f"/v1/jobs/{job}/logs/job")
    assert answer.status == 409 and "secret" not in answer.text
    moved = log_folder(site.path, job)
    path.unlink()
    moved.rmdir()
    (tmp_path / "job.log").write_text("a secret\n")
    moved.symlink_to(tmp_path)
    answer = site.ask("GET", f"/v1/jobs/{job}/logs/job")
    assert answer.status == 409 and "secret" not in answer.text


def test_logs_are_followed_to_the_end_and_from_where_a_client_was(site: Site) -> None:
    job = site.submit()
    _log(site, job, "worker0", b"one\n")
    messages = _messages(_stream(site, f"/v1/jobs/{job}/logs/stream"))
    kind, last, data = next(messages)
    assert (kind, data) == ("log", {"log": "worker0", "text": "one\n"})
    _log(site, job, "worker0", b"two\n")
    _log(site, job, "worker1", b"other\n")
    seen = [next(messages)[2]["text"] for _ in range(2)]
    assert sorted(seen) == ["other\n", "two\n"]
    _log(site, job, "worker0", b"end")
    site.ask("POST", f"/v1/jobs/{job}/cancel")
    assert next(messages)[2]["text"] == "end"
    assert next(messages)[::2] == ("end", {"state": "cancelled"})
    assert next(messages, None) is None
    again = _messages(_stream(site, f"/v1/jobs/{job}/logs/stream", last=last))
    assert next(again)[2]["text"] == "two\nend"
    refused = site.ask("GET", f"/v1/jobs/{job}/logs/stream", headers={"last-event-id": '{"x": 1}'})
    assert refused.status == 400 and "last-event-id" in refused.text


def test_events_come_as_they_happen_and_none_twice(site: Site) -> None:
    job = site.submit()
    stream = _messages(_stream(site, "/v1/events/stream?after=0", "admin"))
    seen = [next(stream)]
    while seen[-1][2]["job"] != job:
        seen.append(next(stream))
    later = site.submit("other")
    seen.append(next(stream))
    assert seen[-1][2] == {**seen[-1][2], "job": later, "text": "submitted"}
    numbers = [data["id"] for _, _, data in seen]
    assert numbers == sorted(set(numbers))
    resumed = _messages(_stream(site, "/v1/events/stream", "admin", last=seen[-2][1]))
    assert next(resumed) == seen[-1]
    own = _messages(_stream(site, "/v1/events/stream", last=seen[-2][1]))
    mine = site.submit()
    assert next(own)[2]["job"] == mine  # without the other tenant's events


def test_the_overview_is_sent_again_when_it_changes(site: Site) -> None:
    messages = _messages(_stream(site, "/v1/overview/stream"))
    assert next(messages)[2]["slots"] == []
    site.cluster.places = [("h1.0", "h1", "free", None)]
    try:
        while not (found := next(messages)[2]["slots"]):
            pass
        assert found == [{"id": "h1.0", "host": "h1", "state": "free", "job": None}]
    finally:
        site.cluster.places = []


def test_operating_page_lists_all_metrics(site: Site) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "operating.md").read_text()
    shown = re.findall(r"^# TYPE (\w+)", site.ask("GET", "/metrics").text, re.M)
    assert sorted(re.findall(r"^\| `(ddl_\w+)`", page, re.M)) == sorted(shown)


def test_metrics_escape_what_they_show(site: Site) -> None:
    text = 'a"b\\c\nd'
    site.store.tenant_put(text)
    shown = site.ask("GET", "/metrics", role="admin").text
    assert 'tenant="a\\"b\\\\c\\nd"' in shown
    assert all(line.startswith(("#", "ddl_")) for line in shown.splitlines())


# ---- the port and address ----


def test_tokens_do_not_travel_over_networks_unencrypted() -> None:
    pem = Path("x.pem")
    for host in ("127.0.0.1", "::1", "[::1]", "localhost", "127.8.0.9"):
        assert check_address(host, None, None) is False
    for host in ("0.0.0.0", "::", "10.0.0.1", "localhost.example", "node1"):
        with pytest.raises(ValueError, match="tokens would be sent unencrypted"):
            check_address(host, None, None)
        assert check_address(host, pem, pem) is True
    with pytest.raises(ValueError, match="both a certificate and its key"):
        check_address("127.0.0.1", pem, None)


def test_headers_that_browsers_need(site: Site) -> None:
    for path in ("/v1/jobs", "/v1/nothing", "/login", "/static/app.js"):
        headers = site.ask("GET", path).headers
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "unsafe-inline" not in headers["content-security-policy"].split("style-src")[0]
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers


# ---- helpers ----


def _wait(look: Any) -> Any:
    ends = time.monotonic() + 60
    while not (found := look()):
        assert time.monotonic() < ends
        time.sleep(0.05)
    return found


def _stream(site: Site, path: str, role: str = "user", last: str = "") -> Iterator[str]:
    again = f"Last-Event-ID: {last}\r\n" if last else ""
    with socket.create_connection(("127.0.0.1", site.port), timeout=60) as connection:
        connection.sendall(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{again}"
            f"Authorization: Bearer {site.tokens[role]}\r\n\r\n".encode()
        )
        with connection.makefile("rb") as file:
            status = file.readline()
            assert b" 200 " in status, status
            while file.readline().strip():
                pass
            while line := file.readline():  # chunks of HTTP: a length, and this many bytes
                chunk = file.read(int(line, 16) + 2)[:-2]
                yield from chunk.decode().rstrip("\n").split("\n")


def _messages(lines: Iterator[str]) -> Iterator[tuple[str, str, Any]]:
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        fields[name] = value
        if name == "data":
            yield fields["event"], fields.get("id", ""), json.loads(value)
            fields = {}
