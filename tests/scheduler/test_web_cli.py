# SPDX-License-Identifier: Apache-2.0
"""The client and the commands of `ddl` that send requests to `ddl serve`, over HTTP with a real
store."""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from conftest import Run
from web_site import Site

from ddl_launch.errors import CommandError
from ddl_scheduler.base.folder import JobFolder
from ddl_scheduler.base.logs import log_folder
from ddl_scheduler.cli.access import Access, AccessError, access_read, access_write
from ddl_scheduler.cli.client import Client, ServerError
from ddl_scheduler.cli.commands import add_commands

Ddl = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("web"))
    yield made
    made.close()


@pytest.fixture
def ddl(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Ddl:
    monkeypatch.setenv("DDL_SERVER_FILE", str(tmp_path / "none.toml"))
    monkeypatch.setenv("DDL_SERVER", site.url)

    def run(*arguments: str, role: str = "user") -> tuple[int, str, str]:
        monkeypatch.setenv("DDL_TOKEN", site.tokens.get(role, role))
        parser = argparse.ArgumentParser(prog="ddl")
        add_commands(parser.add_subparsers().add_parser)
        capsys.readouterr()
        try:
            parsed = parser.parse_args(arguments)
            code = parsed.run(parsed)
        except CommandError as error:  # like ddl
            return 2, "", str(error)
        except SystemExit as error:
            code = error.code
        return (int(code), *capsys.readouterr())

    return run


def test_a_job_is_submitted_and_steered(site: Site, ddl: Ddl) -> None:
    options = ("--min", "2", "--max", "8", "--tier", "1", "--deadline", "2h", "--env", "A=b=c")
    before = time.time()
    code, out, _ = ddl("job", "submit", *options, "--", "python", "train.py", "--min", "7")
    assert code == 0
    job = int(out)
    record = site.store.job_find(job)
    assert record and record.tenant == "a"
    spec = record.spec
    assert spec["command"] == ["python", "train.py", "--min", "7"]
    assert (spec["min"], spec["max"], spec["tier"]) == (2, 8, 1)
    assert spec["environment"] == {"A": "b=c"} and spec["folder"] == str(Path.cwd())
    assert before + 7200 <= spec["deadline"] <= time.time() + 7201
    assert ddl("job", "scale", str(job), "3:4")[0] == 0
    assert ddl("job", "pause", str(job)) == (0, f"job {job} is paused\n", "")
    lines = ddl("job", "list")[1].splitlines()
    assert lines[0].split()[:3] == ["job", "name", "state"]
    (line,) = (line for line in lines if line.split()[0] == str(job))
    assert " ".join(line.split()[1:]) == "train.py paused a 1 0 of 3:4 paused by its tenant"
    code, out, _ = ddl("job", "resume", str(job), "--json")
    assert (code, json.loads(out)["state"]) == (0, "waiting")
    assert ddl("job", "cancel", str(job))[0] == 0
    assert str(job) not in [line.split()[0] for line in ddl("job", "list")[1].splitlines()]
    shown = json.loads(ddl("job", "list", "--all", "--json")[1])
    assert job in {each["id"] for each in shown}


def test_show_prints_all_fields_of_a_job(site: Site, ddl: Ddl) -> None:
    job = int(ddl("job", "submit", "--name", "cats", "--deadline", "2h", "--", "train.py")[1])
    code, out, _ = ddl("job", "show", str(job))
    shown = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert code == 0 and (shown["id"], shown["state"]) == (str(job), "waiting")
    assert shown["command"] == '["train.py"]' and shown["folder"] == str(Path.cwd())
    assert shown["deadline"].startswith("20") and shown["name"] == "cats"
    assert json.loads(ddl("job", "show", str(job), "--json")[1])["id"] == job
    assert ddl("job", "show", "999999")[0] == 5


def test_tokens_are_listed_and_revoked_by_id(site: Site, ddl: Ddl) -> None:
    made = ("token", "--store", str(site.path))
    token = ddl(*made, "short", "viewer")[1].strip()
    lines = ddl(*made, "--list")[1].splitlines()
    assert lines[0].split() == ["id", "tenant", "role"]
    (row,) = (line.split() for line in lines if " short " in line)
    assert row[2] == "viewer" and row[0] not in token and token not in "".join(lines)
    assert ddl("job", "list", role=token)[0] == 0
    assert ddl(*made, "--revoke", row[0]) == (0, "", "")
    assert ddl("job", "list", role=token)[0] == 4
    assert ddl(*made, "--revoke", row[0])[0] == 2
    token = ddl(*made, "short", "viewer")[1].strip()
    assert ddl(*made, "--revoke", token)[0] == 0
    for wrong in ((), ("short",), ("--list", "--revoke", "1")):
        assert ddl(*made, *wrong)[0] == 2


def test_list_and_show_print_why_a_job_has_failed(site: Site, ddl: Ddl) -> None:
    job = int(ddl("job", "submit", "--", "train.py")[1])
    site.store.job_move(job, "failed", time.time(), "the folder /nowhere cannot be entered")
    (line,) = (row for row in ddl("job", "list", "--all")[1].splitlines() if f"{job} " in row[:9])
    assert line.endswith("  the folder /nowhere cannot be entered")
    shown = json.loads(ddl("job", "show", str(job), "--json")[1])
    assert shown["reason"] == "the folder /nowhere cannot be entered"


@pytest.mark.parametrize(
    ("former", "name"),
    [
        *(("ps", "list"), ("logs", "logs"), ("scale", "scale"), ("pause", "pause")),
        *(("resume", "resume"), ("cancel", "cancel"), ("submit", "submit")),
    ],
)
def test_former_name_does_the_same_and_prints_the_new_one(
    site: Site, ddl: Ddl, former: str, name: str
) -> None:
    arguments = {"ps": [], "scale": ["2:3"], "submit": ["--key", "former", "--", "train.py"]}
    words = arguments.get(former, [])
    jobs = [str(site.submit()) for _ in range(2)] if former not in ("ps", "submit") else ["", ""]
    if former == "resume":
        assert ddl("job", "pause", *jobs)[0] == 0
    old = ddl(former, *filter(None, jobs[:1]), *words)
    new = ddl("job", name, *filter(None, jobs[1:]), *words)
    assert old[2] == f"ddl {former}: use `ddl job {name}`; 0.3 removes this name\n"
    assert (old[0], old[1].replace(jobs[0], jobs[1])) == new[:2] and not new[2]


def test_weight_and_memory_are_submitted(site: Site, ddl: Ddl) -> None:
    options = ("--weight", "2.5", "--memory", "2GiB, 400 MB")
    code, out, _ = ddl("job", "submit", *options, "--", "train.py")
    record = site.store.job_find(int(out))
    assert code == 0 and record
    assert record.spec["weight"] == 2.5
    assert record.spec["memory"] == {"fixed": 2 << 30, "gradient": 400_000_000}


def test_a_key_submits_once(ddl: Ddl) -> None:
    first = ddl("job", "submit", "--key", "k", "train.py")
    assert first[0] == 0 and ddl("job", "submit", "--key", "k", "train.py") == first


def test_exit_codes_tell_what_was_wrong(site: Site, ddl: Ddl) -> None:
    job = str(site.submit())
    assert ddl("job", "cancel", job)[0] == 0
    code, _, err = ddl("job", "cancel", job)
    assert code == 1 and "is cancelled and cannot become cancelled" in err
    for wrong in (
        ("job", "submit"),
        ("job", "submit", "--min", "3", "--max", "2", "--", "x"),
        ("job", "submit", "--deadline", "soon", "--", "x"),
        ("job", "submit", "--env", "A", "--", "x"),
        ("job", "submit", "--memory", "2GiB", "--", "x"),
        ("job", "submit", "--memory", "2GiB,much", "--", "x"),
        ("job", "submit", "--weight", "0", "--", "x"),
        ("job", "scale", job, "many"),
        ("job", "logs", "0"),
        ("job", "list", "--server", "http://10.0.0.1:1"),
        ("job", "list", "--server", "nowhere"),
    ):
        code, out, err = ddl(*wrong)
        assert (code, out) == (2, "") and err
    with socket.socket() as nobody:  # bound, but not listening
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        code, _, err = ddl("job", "list", "--server", url)
    assert code == 3 and "is `ddl serve` running?" in err
    code, _, err = ddl("job", "list", role="wrong")
    assert code == 4 and "is unknown or was revoked" in err
    code, _, err = ddl("job", "submit", "x", role="viewer")
    assert code == 4 and "needs the role user" in err
    other = str(site.submit("other"))
    code, out, err = ddl("job", "pause", other, str(site.submit()))
    assert code == 5 and "is paused" in out and f"job {other} does not exist" in err


def test_logs_are_printed_and_followed(site: Site, ddl: Ddl) -> None:
    job = site.submit()
    folder = log_folder(site.path, job)
    folder.mkdir(parents=True)
    (folder / "job.log").write_text("began\n")
    (folder / "worker0.log").write_text("one\n\x1b]0;title\x07two\n")
    (folder / "worker1.log").write_text("x" * 200000 + "\n")
    code, out, _ = ddl("job", "logs", str(job))
    assert code == 0 and out.startswith("began\n[0] one\n[0] \\x1b]0;title\\x07two\n[1] xxx")
    assert out.count("x" * 1000) == 200 or out.count("x") == 200000 + 2  # the output is complete
    assert ddl("job", "logs", str(job), "--worker", "0")[1].count("\n") == 2
    ends = threading.Timer(0.2, lambda: site.ask("POST", f"/v1/jobs/{job}/cancel"))
    ends.start()
    code, out, err = ddl("job", "logs", "-f", str(job), "--worker", "0")
    ends.join()
    assert (code, out.count("[0] "), err) == (1, 2, f"job {job} is cancelled\n")
    done = site.submit()
    site.store.plan_write({done: ("s",)}, time.time())
    site.store.job_move(done, "done", time.time())
    assert ddl("job", "logs", "-f", str(done))[::2] == (0, f"job {done} is done\n")


def test_top_shows_the_cluster(site: Site, ddl: Ddl) -> None:
    job = site.submit(name="digits")
    waiting = site.submit(name="large")
    site.cluster.places = [("h1.0", "h1", "used", job), ("h2.0", "h2", "free", None)]
    site.cluster.reports = {waiting: {"waiting": "[red]needs\x1b[2J 9"}}
    try:
        code, out, _ = ddl("top", "--once")
        assert code == 0 and "1 of 2 slots in use" in out and "digits" in out
        assert "[red]needs" in out and "\x1b" not in out
        assert json.loads(ddl("top", "--json")[1])["slots"][0]["job"] == job
    finally:
        site.cluster.places, site.cluster.reports = [], {}


def test_top_without_rich_names_the_remedy(ddl: Ddl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.delitem(sys.modules, "ddl_scheduler.cli.top", raising=False)
    code, _, error = ddl("top", "--once")
    assert code == 2 and error.endswith("; pip install 'libddl[scheduler]'")
    assert ddl("top", "--json")[0] == 0


def test_a_token_is_made_beside_the_store(site: Site, ddl: Ddl, tmp_path: Path) -> None:
    file = tmp_path / "deep" / "server.toml"
    made = ("token", "--store", str(site.path), "--file", str(file), "--server", site.url)
    assert ddl(*made, "new", "user") == (0, "", "")
    assert file.stat().st_mode & 0o777 == 0o600
    code, out, _ = ddl("token", "--store", str(site.path), "new", "viewer")
    assert code == 0 and site.store.token_find(out.strip()) == ("new", "viewer")
    assert ddl("token", "--store", str(tmp_path / "no.db"), "new", "viewer")[0] == 2
    assert ddl("token", "--store", str(site.path), "a b", "viewer")[0] == 2


def test_the_installed_ddl_has_the_commands(run_here: Run) -> None:
    ddl = [sys.executable, "-m", "ddl_launch.commands", "--help"]
    shown = run_here(ddl).expect_success().out
    for command in ("serve", "job", "top", "token"):
        assert f"\n  {command} " in shown


# ---- the server's address, and the token ----


def test_what_is_set_counts_before_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "server.toml"
    monkeypatch.setenv("DDL_SERVER_FILE", str(file))
    for name in ("DDL_SERVER", "DDL_TOKEN", "DDL_SERVER_CA"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(AccessError, match="no token is set: set DDL_TOKEN"):
        access_read()
    written = Access("https://head:1", "abc", 'a"b\\c.pem')
    access_write(file, written)
    assert access_read() == written
    assert access_read("https://other:2").address == "https://other:2"
    monkeypatch.setenv("DDL_TOKEN", "def")
    assert access_read() == Access("https://head:1", "def", 'a"b\\c.pem')
    file.chmod(0o640)
    with pytest.raises(AccessError, match="has mode 640, so other users can read its token"):
        access_read()
    file.chmod(0o600)
    for text in ("token = 3", "tokens = 'x'", "token", "\xff"):
        file.write_text(text, encoding="latin-1")
        with pytest.raises(AccessError, match="server.toml"):
            access_read()


def test_token_file_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "server.toml"
    access_write(file, Access("https://head:1", "abc", ""))
    monkeypatch.setenv("DDL_SERVER_FILE", str(file))
    other = os.getuid() + 1
    about = os.stat_result((0o100600, 0, 0, 1, other, 0, 0, 0, 0, 0))
    monkeypatch.setattr(os, "fstat", lambda _: about)
    with pytest.raises(AccessError, match=rf"belongs to another user \(id {other}\)"):
        access_read()


@pytest.mark.parametrize(
    "address", ["head:8470", "ftp://head", "http://head:1", "http://127.0.0.1.evil.example"]
)
def test_a_token_goes_to_no_other_machine_unencrypted(address: str) -> None:
    with pytest.raises(AccessError):
        Access(address, "abc")
    for wrong in ("a b", "a\nb", "\N{SNOWMAN}"):
        with pytest.raises(AccessError, match="a space, a control character"):
            Access("http://127.0.0.1:1", wrong)


def test_a_submission_is_repeated_when_the_answer_is_lost(site: Site) -> None:
    """A relay forwards the request and cuts the connection before the answer, twice."""
    seen: list[bytes] = []

    def relay(listener: socket.socket) -> None:
        for number in range(3):
            connection, _ = listener.accept()
            with connection, socket.create_connection(("127.0.0.1", site.port)) as server:
                request = b""
                while not request.endswith(b"}"):
                    request += connection.recv(65536)
                seen.append(request)
                server.sendall(request)
                with server.makefile("rb") as file:
                    answer = file.read()  # the client sends one request in each connection
                if number == 2:
                    connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=relay, args=(listener,))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        job: Any = Client(Access(url, site.tokens["user"])).submit(["relayed.py"])
        thread.join(60)
    own = [each for each in site.store.jobs() if each.spec["command"] == ["relayed.py"]]
    assert [each.id for each in own] == [job["id"]] and len(seen) == 3


def test_the_client_follows_no_redirects_and_reads_any_error() -> None:
    def answer(listener: socket.socket) -> None:
        for text in (
            b"302 Found\r\nLocation: http://127.0.0.1:1/",
            b"502 Bad\r\nContent-Length: 3",
        ):
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 " + text + b"\r\nConnection: close\r\n\r\n???")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        client = Client(Access(f"http://127.0.0.1:{listener.getsockname()[1]}", "abc"))
        for status in (302, 502):
            with pytest.raises(ServerError, match=f"HTTP {status}") as error:
                client.overview()
            assert error.value.status == status
        thread.join(60)


@pytest.mark.skipif(not shutil.which("openssl"), reason="there is no openssl, for a certificate")
def test_tls_is_spoken_and_checked(tmp_path: Path) -> None:
    certificate, key = tmp_path / "own.pem", tmp_path / "own.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
            *("-out", certificate, "-keyout", key),
        ],
        check=True,
        capture_output=True,
    )
    with closing(Site(tmp_path, certificate=certificate, key=key)) as site:
        address = site.url.replace("http://127.0.0.1", "https://localhost")
        trusting = Client(Access(address, site.tokens["user"], str(certificate)))
        assert trusting.jobs() == []
        with pytest.raises(ServerError, match="certificate verify failed"):
            Client(Access(address, site.tokens["user"])).jobs()
        with pytest.raises(ServerError, match="does not answer"):
            Client(Access(site.url, site.tokens["user"])).jobs()  # without TLS


def test_failed_job_is_resumed_from_its_checkpoint(site: Site) -> None:
    job = site.submit()
    site.store.job_move(job, "failed", time.time(), "out of memory")
    refused = site.ask("POST", f"/v1/jobs/{job}/resume")
    assert refused.status == 409 and "has failed and has no checkpoint" in refused.text
    folder = JobFolder(site.path, job)
    (folder.checkpoints / "0").mkdir(parents=True)
    (folder.checkpoints / "0" / "steps-000000000005.json").write_text("{}")
    folder.result_write({"state": "failed", "measured": [1]})
    assert site.ask("POST", f"/v1/jobs/{job}/resume").json["state"] == "waiting"
    assert folder.result() == {"state": "resumed", "measured": [1]}
    assert site.ask("POST", f"/v1/jobs/{job}/resume").status == 409
