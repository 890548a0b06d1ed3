# SPDX-License-Identifier: Apache-2.0
"""`ddl serve` with agents on several hosts with a slow network between them."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddl_launch.lab import Lab, missing
from ddl_scheduler.base.folder import JobFolder
from ddl_scheduler.base.store import Store

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=missing() or "there are labs"),
    pytest.mark.slow,
]

PROGRAM = Path(__file__).parents[1] / "scheduler" / "programs" / "served.py"
DDL = [sys.executable, "-m", "ddl_launch.commands"]
LIMIT = 240  # seconds without any progress, on a busy machine
SETTLED = 30  # seconds, and also steps, after which a size counts as the last one
PORT = 29400
SLOTS = 2  # of a host


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(3, rate="40mbit") as lab:
        yield lab


def wait_until(
    condition: Callable[[], object], progress: Callable[[], object], tell: Callable[[], object]
) -> None:
    """Wait as long as there is progress, however slow."""
    seen, deadline = None, 0.0
    while not condition():
        now = time.monotonic()
        if (there := progress()) != seen:
            seen, deadline = there, now + LIMIT
        assert now < deadline, f"no progress for {LIMIT} s: {tell()}"
        time.sleep(0.2)


@pytest.mark.parametrize(
    ("width", "share", "size"),
    [(80_000, 0.05, SLOTS), (16, 0.3, 3 * SLOTS)],
    ids=["large", "small"],
)
def test_a_job_stops_at_its_knee(
    lab: Lab, width: int, share: float, size: int, tmp_path: Path
) -> None:
    """With a large model, steps of 12 shares take 0.6 s / W, and an exchange of 3.8 MB between
    hosts takes longer: such a job stays on one host once it is measured. A job with a small model
    and long shares gets all slots, even if a busy machine delays its exchanges."""
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
        log = (tmp_path / "h1.log").read_text
        wait_until(lambda: log().count("has connected with") == 3, log, log)
        command = [str(PROGRAM), "--steps", "5000", "--width", str(width), "--every", "100000"]
        command += ["--share", str(share), "--go", str(tmp_path / "never")]
        spec = {"command": command, "logical": 12, "folder": str(tmp_path)}
        job = store.job_submit("t", "key", spec, time.time())

        def sizes() -> list[int]:
            texts = [text for _, _, of, text in store.events() if of == job]
            return [int(each) for each in re.findall(r"has (\d+) slots", " ".join(texts))]

        def steps() -> int:
            text = folder.curve.read_text() if folder.curve.exists() else ""
            return int(["0", *re.findall(r'"step": (\d+)', text)][-1])

        folder, since = JobFolder(path, job), (0, time.monotonic(), 0)  # the last size

        def is_settled() -> bool:
            nonlocal since
            changes, now = len(sizes()), time.monotonic()
            if changes != since[0]:
                since = changes, now, steps()
            lasts = min(now - since[1], steps() - since[2])
            assert lasts < 10 * SETTLED, f"stays at {sizes()[-1]} of {sizes()}"
            return lasts > SETTLED and sizes()[-1] == size

        wait_until(is_settled, lambda: (steps(), sizes()), lambda: (sizes(), log()[-2000:]))
        assert max(sizes()) == 3 * SLOTS, "it was not tried with all slots"
        hosts = {slot.rpartition("-")[0] for slot in store.slots()[job]}
        assert len(hosts) == size // SLOTS, store.slots()
        print(width, sizes(), hosts)
        store.job_move(job, "cancelled", time.time())
        wait_until(lambda: folder.result().get("state") == "cancelled", log, log)
        print(folder.result()["measured"])
    finally:
        for process in processes:
            process.kill()
            process.wait()
        store.close()
