# SPDX-License-Identifier: Apache-2.0
"""`ddl serve` with agents on several hosts, between which the network is slow."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddl_elastic.scheduler.folder import JobFolder
from ddl_elastic.scheduler.store import Store
from ddl_launch.lab import Lab, missing

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=missing() or "there are labs"),
    pytest.mark.slow,
]

PROGRAM = Path(__file__).parents[1] / "elastic" / "programs" / "served.py"
DDL = [sys.executable, "-m", "ddl_launch.commands"]
LIMIT = 240  # seconds, on a busy machine
PORT = 29400
SLOTS = 2  # of a host


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(3, rate="40mbit") as lab:
        yield lab


def wait_until(condition: Callable[[], object], tell: Callable[[], object] = str) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, f"not so within {LIMIT} s: {tell()}"
        time.sleep(0.05)


@pytest.mark.parametrize(("width", "size"), [(80_000, SLOTS), (16, 3 * SLOTS)])
def test_a_job_stops_at_its_knee(lab: Lab, width: int, size: int, tmp_path: Path) -> None:
    """Steps of 12 shares take 0.6 s / W, and an exchange of 3.8 MB takes more than that between
    hosts: such a job stays on one host once it is measured. One with a small model gets all."""
    path, token = tmp_path / "jobs.db", tmp_path / "token"
    token.write_text("what only agents know\n")
    store = Store(path)
    store.tenant_put("t")
    processes: list[subprocess.Popen[bytes]] = []

    def start(host: str, *words: object) -> None:
        with (tmp_path / f"{host}.log").open("ab") as log:
            command = lab.at(host, *DDL, *map(str, words))
            processes.append(subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log))

    try:
        options = ["--agents", PORT, "--token-file", token, "--listen", 0]
        start("h1", "serve", "--store", path, *options)
        address = lab.hosts[0].addresses[0]
        for host in ("h1", "h2", "h3"):
            join = ["--join", f"{address}:{PORT}", "--token-file", token, "-n", SLOTS]
            start(host, "elastic", "agent", *join)
        wait_until(lambda: (tmp_path / "h1.log").read_text().count("is there") == 3)
        command = [str(PROGRAM), "--steps", "5000", "--width", str(width), "--every", "100000"]
        command += ["--go", str(tmp_path / "never")]
        spec = {"command": command, "logical": 12, "folder": str(tmp_path)}
        job = store.job_submit("t", "key", spec, time.time())

        def sizes() -> list[int]:
            texts = [text for _, _, of, text in store.events() if of == job]
            return [int(each) for each in re.findall(r"has (\d+) slots", " ".join(texts))]

        began = time.monotonic()
        wait_until(
            lambda: sizes()[-1:] == [size] and time.monotonic() > began + 60,
            lambda: (sizes(), (tmp_path / "h1.log").read_text()[-2000:]),
        )
        assert max(sizes()) == 3 * SLOTS or size == SLOTS, sizes()
        hosts = {slot.rpartition("-")[0] for slot in store.slots()[job]}
        assert len(hosts) == size // SLOTS, store.slots()
        print(width, sizes(), hosts)
        store.job_move(job, "cancelled", time.time())
        wait_until(lambda: JobFolder(path, job).result().get("state") == "cancelled")
        print(JobFolder(path, job).result()["measured"])
    finally:
        for process in processes:
            process.kill()
            process.wait()
        store.close()
