# SPDX-License-Identifier: Apache-2.0
"""`ddl serve` with its interfaces, and real training jobs. `make test-web`."""

import json
import re
import shutil
import socket
import ssl
import subprocess
import sys
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
from conftest import clean_environment, free_port
from serving import DDL, PROGRAM, Serving, wait_for

from ddl_scheduler.cli.access import AccessError, access_read
from ddl_scheduler.cli.client import Client, ServerError
from ddl_scheduler.web.server import make_server


@pytest.mark.slow
def test_a_job_is_submitted_preempted_followed_and_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, file, url = tmp_path / "jobs.db", tmp_path / "server.toml", f"127.0.0.1:{free_port()}"
    order = [*DDL, "serve", "--store", store, "--slots", "3", "--listen", url]
    for name in ("DDL_SERVER", "DDL_TOKEN", "DDL_SERVER_CA"):
        monkeypatch.delenv(name, raising=False)
    environment = clean_environment({"DDL_SERVER_FILE": str(file)})
    monkeypatch.setenv("DDL_SERVER_FILE", str(file))

    def ddl(*arguments: str | Path) -> str:
        ended = subprocess.run(
            [*DDL, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def serve() -> subprocess.Popen[bytes]:
        with (tmp_path / "serve.log").open("ab") as log:
            return subprocess.Popen(
                order, cwd=tmp_path, env=environment, stdout=log, stderr=subprocess.STDOUT
            )

    serving = serve()
    try:
        wait_for(store.exists, "the store")
        ddl("token", "--store", store, "--file", file, "--server", f"http://{url}", "t", "user")
        client = Client(access_read())

        def answers() -> bool:
            try:
                return bool(client.overview())
            except ServerError:
                return False

        wait_for(answers, "the interface")
        go = tmp_path / "go"
        program = (sys.executable, str(PROGRAM), "--go", str(go), "--steps", "40")
        low = int(ddl("job", "submit", "--name", "low", "--max", "3", "--", *program))
        wait_for(lambda: len(client.job(low)["slots"]) == 3, "the job has all slots")
        high = int(
            ddl("job", "submit", "--name", "high", "--tier", "1", "--min", "2", "--", *program)
        )
        wait_for(lambda: len(client.job(low)["slots"]) == 1, "the job was preempted")
        wait_for(lambda: len(client.job(high)["slots"]) >= 2, "the higher tier has its minimum")
        wait_for(lambda: client.job(high)["step"], "steps are told")
        go.touch()
        logs = {}
        for job in (high, low):
            lines = ddl("job", "logs", "-f", str(job)).splitlines()  # 0: it is done
            logs[job] = [line.split("state ")[1] for line in lines if "] state " in line]
            assert client.job(job)["state"] == "done"
        assert len(logs[low]) == 1 and logs[low] == logs[high]  # the same bits as undisturbed
        report = client.ask("GET", f"/v1/jobs/{low}/report")
        assert report["history"] and report["live"]["steps"] == 40
        serving.kill()
        serving.wait()
        serving = serve()
        wait_for(answers, "the interface")
        assert client.ask("GET", f"/v1/jobs/{low}/report")["history"] == report["history"]
        assert client.ask("GET", f"/v1/jobs/{low}/report")["live"]["steps"] == 40
        (tenant,) = client.ask("GET", "/v1/tenants")["tenants"]
        assert tenant["jobs"] == {"done": 2} and tenant["slot_hours"] > 0
    finally:
        with suppress(ServerError, AccessError):  # jobs would go on without the service
            own = Client(access_read())
            for each in own.jobs("active"):
                own.act(each["id"], "cancel")
            wait_for(lambda: all(slot["state"] == "free" for slot in own.overview()["slots"]))
        serving.terminate()
        serving.wait(60)


class TlsServing(Serving):
    """Listen on all addresses of this machine, with a certificate for `localhost`."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.certificate, key = folder / "own.pem", folder / "own.key"
        order = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
        order += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
        order += ["-out", str(self.certificate), "-keyout", str(key)]
        subprocess.run(order, check=True, capture_output=True)
        self.options = ["--listen", f"0.0.0.0:{self.port}", "--certificate", self.certificate]
        self.options += ["--key", key, "--host-name", "Head.example.org", "--host-name", "fd00::5"]
        super().__init__(folder)

    def ask(self, host: str) -> tuple[int, str]:
        trusting = ssl.create_default_context(cafile=str(self.certificate))
        connection = HTTPSConnection("localhost", self.port, context=trusting, timeout=60)
        token = self.store.token_create("t", "viewer")
        headers = {"host": host, "authorization": f"Bearer {token}"}
        try:
            connection.request("GET", "/v1/jobs", headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def answers(self) -> bool:
        with suppress(OSError):
            return bool(self.ask("localhost"))
        return False


@pytest.mark.skipif(not shutil.which("openssl"), reason="there is no openssl, for a certificate")
def test_other_machines_reach_it_by_its_names(tmp_path: Path) -> None:
    with closing(TlsServing(tmp_path)) as serving:
        wait_for(serving.answers, "the interface")
        own = (socket.gethostname(), socket.getfqdn(), "0.0.0.0", "head.example.org", "[fd00::5]")
        for name in own:
            for host in (name, f"{name}:{serving.port}", f"{name.upper()}:{serving.port}"):
                status, text = serving.ask(host)
                assert status == 200, (host, text)
        for foreign in ("evil.example.org", f"x{own[0]}", f"{own[0]}.evil.example.org", "fd00::5"):
            status, text = serving.ask(f"{foreign}:{serving.port}")
            assert status == 400 and json.loads(text)["error"]["field"] == "host", foreign


def test_a_name_of_two_addresses_has_one_free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    async def app(*_: Any) -> None:
        pass

    addresses = [("127.0.0.1", 0), ("127.0.0.2", 0)]
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", each) for each in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert make_server(app, "localhost", 0).config.host == "127.0.0.1"
    assert make_server(app, "localhost", 8470).config.host == "localhost"


def test_the_port_that_it_got_is_said(tmp_path: Path) -> None:
    serving, log = Serving(tmp_path), tmp_path / "serve.log"
    try:
        (port,) = wait_for(
            lambda: re.findall(r"listening on http://127\.0\.0\.1:(\d+)\n", log.read_text())
        )
        connection = HTTPConnection("127.0.0.1", int(port), timeout=60)
        connection.request("GET", "/v1/openapi.json")
        assert connection.getresponse().status == 200
        connection.close()
        order = [*DDL, "serve", "--store", tmp_path / "other.db", "--listen", port]
        ended = subprocess.run(order, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 2, ended.stderr
        assert "address already in use" in ended.stderr.lower()
        assert f"ddl: --listen 127.0.0.1:{port}: the server could not listen" in ended.stderr
    finally:
        serving.close()


@pytest.mark.parametrize("name", ["https://head", "head:8470", "", "a b", "head/x", "[head]"])
def test_what_is_no_host_name(name: str, tmp_path: Path) -> None:
    order = [*DDL, "serve", "--store", tmp_path / "jobs.db", "--listen", "0", "--host-name", name]
    ended = subprocess.run(order, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2
    assert f"--host-name {name!r} is not a name or address of a machine" in ended.stderr
