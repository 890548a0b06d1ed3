# SPDX-License-Identifier: Apache-2.0
"""`ddl serve --user`: the jobs of a tenant run as its user, and cannot read another tenant's."""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import DDL, PROGRAM, Serving, holders, kill, wait_for

USERS = {"t": "nobody", "other": "daemon"}

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="other users' processes need root")


class UserServing(Serving):
    options = tuple(word for each in USERS.items() for word in ("--user", "=".join(each)))


@pytest.fixture
def serving() -> Iterator[UserServing]:
    # pytest's folders can be entered by root only.
    folder = Path(tempfile.mkdtemp(prefix="ddl-test-users-"))
    folder.chmod(0o755)
    (folder / "program").mkdir()
    shutil.copy(PROGRAM, folder / "program")
    made = UserServing(folder)
    yield made
    made.close()
    shutil.rmtree(folder)


PEEK = """\
import os, pathlib, sys
for name in sys.argv[1:]:
    try:
        print(name, "read", pathlib.Path(name).stat() and len(os.listdir(name)) if
              os.path.isdir(name) else len(open(name, "rb").read()))
    except PermissionError:
        print("refused", name)
print("user", os.getresuid(), os.getresgid(), os.getgroups(), os.environ["HOME"], flush=True)
"""


@needs_root
def test_jobs_run_as_their_tenants_users(serving: UserServing) -> None:
    program = serving.folder / "program" / PROGRAM.name
    spec: dict[str, Any] = {"folder": str(serving.folder / "program"), "max": 2}
    go = serving.folder / "go"
    words = ["--steps", 100, "--share", 0.1, "--every", 5, "--go", go]
    job = serving.submit(command=[str(program), *map(str, words)], **spec)
    wait_for(lambda: len(serving.pids(job)) == 2)
    owner = pwd.getpwnam(USERS["t"])
    saved = serving.folder_of(job).checkpoints
    wait_for(lambda: list((saved / "0").glob("steps-*.json")))
    for pid in serving.pids(job):
        assert Path(f"/proc/{pid}").stat().st_uid in (0, owner.pw_uid)
        status = Path(f"/proc/{pid}/status").read_text()
        assert f"Uid:\t{owner.pw_uid}\t{owner.pw_uid}\t{owner.pw_uid}\t{owner.pw_uid}" in status
    kill(serving.pids(job)[1])
    wait_for(lambda: len(serving.pids(job)) == 3)

    serving.store.tenant_put("other")
    peek = serving.folder / "program" / "peek.py"
    peek.write_text(PEEK)
    own = serving.folder_of(job)
    hidden = [serving.path, saved, own.path, own.log(0), own.events, own.path / "result.json"]
    environ = [Path(f"/proc/{serving.pids(job)[0]}/environ")]
    command = [str(peek), *map(str, [*hidden, *environ])]
    looks = serving.store.job_submit("other", "peek", {"command": command, **spec}, time.time())
    wait_for(lambda: "user" in serving.written(looks))
    wait_for(lambda: serving.record(looks).state in ("done", "failed"))
    written = serving.written(looks)
    assert written.count("refused") >= len(hidden) + 1 and " read " not in written, written
    daemon = pwd.getpwnam(USERS["other"])
    assert f"user {(daemon.pw_uid,) * 3} {(daemon.pw_gid,) * 3}" in written

    go.touch()
    serving.wait(job, "done")
    assert serving.state(job)
    assert all(path.stat().st_uid == owner.pw_uid for path in saved.rglob("*"))
    result = serving.folder_of(job).result()["report"]
    assert [e["cause"] for e in result["events"] if e["kind"] == "died"] == ["SIGKILL"]


@pytest.mark.slow
@needs_root
def test_workers_end_with_their_run(serving: UserServing) -> None:
    program = serving.folder / "program" / PROGRAM.name
    words = ["--go", str(serving.folder / "never")]
    spec: dict[str, Any] = {"folder": str(serving.folder / "program"), "max": 1}
    job = serving.submit(command=[str(program), *words], **spec)
    wait_for(lambda: len(serving.pids(job)) == 1)
    lock = serving.folder_of(job).path / "lock"
    others = [pid for pid in holders(lock) if pid != serving.pids(job)[0]]
    for pid in others:
        kill(pid)
    wait_for(lambda: len(serving.pids(job)) == 2)


@needs_root
def test_a_job_without_a_folder(serving: UserServing) -> None:
    """The program runs in a folder that only the service may enter."""
    program = serving.folder / "program" / PROGRAM.name
    spec: dict[str, Any] = {"command": [str(program), "--steps", "5"], "logical": 12, "max": 1}
    job = serving.store.job_submit("t", "no folder", spec, time.time())
    record = serving.wait(job, "done", "failed")
    assert record.state == "done", serving.folder_of(job).events.read_text()


@needs_root
def test_a_folder_that_the_user_cannot_enter(serving: UserServing) -> None:
    """The service could enter it, and its working directory would give the user access."""
    closed = serving.folder / "closed"
    inner = closed / "program"
    inner.mkdir(parents=True)
    shutil.copy(PROGRAM, inner)
    closed.chmod(0o700)
    job = serving.submit(command=[PROGRAM.name], folder=str(inner), max=1)
    serving.wait(job, "failed")
    texts = [text for _, _, of, text in serving.store.events() if of == job]
    assert any("Permission denied" in text for text in texts), texts
    assert not serving.pids(job)


@needs_root
def test_a_tenant_without_a_user(serving: UserServing) -> None:
    serving.store.tenant_put("third")
    job = serving.store.job_submit("third", "k", {"command": ["a.py"]}, time.time())
    serving.wait(job, "failed")
    texts = [text for _, _, of, text in serving.store.events() if of == job]
    assert any("start the service with --user third=NAME" in text for text in texts)


@needs_root
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--user", "t=nosuchuser"], "user 'nosuchuser' does not exist"),
        (["--user", "t=root"], "user root is root"),
        (["--user", "t=nobody", "--ray", "auto"], "they run jobs as the user"),
    ],
)
def test_wrong_usage(options: list[str], said: str, tmp_path: Path) -> None:
    order = [*DDL, "serve", "--store", "a.db", *options]
    done = subprocess.run(order, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and said in done.stderr
