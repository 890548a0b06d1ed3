# SPDX-License-Identifier: Apache-2.0
"""Jobs whose agents dial in, on this machine, and on hosts, which are network namespaces."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import popen
from waits import final_state

sys.path.insert(0, str(Path(__file__).parents[1] / "lab"))

from lab import Lab

PROGRAM = Path(__file__).parent / "programs" / "own_loop.py"
DDL = [sys.executable, "-m", "ddl_launch.commands", "elastic"]
LIMIT = 240  # seconds, on a busy machine
PORT = re.compile(r"on port (\d+)")

needs_hosts = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip"), reason="network namespaces need root and iproute2"
)


class Job:
    """`ddl elastic run --listen` on the first host, and agents on any host; None is this
    machine."""

    def __init__(self, folder: Path, hosts: list[str] | None) -> None:
        self.folder, self.hosts = folder, hosts
        self.token = folder / "job.token"
        self.token.write_text("what only the job's agents know\n")
        self.processes: list[subprocess.Popen[str]] = []
        self.address = ""

    def start(self, host: int, *words: object) -> subprocess.Popen[str]:
        inside = ["ip", "netns", "exec", self.hosts[host]] if self.hosts else []
        process = popen(
            [*inside, *DDL, *map(str, words)], cwd=self.folder, env={"PYTHONUNBUFFERED": "1"}
        )
        self.processes.append(process)
        return process

    def run(self, slots: int, *words: object) -> subprocess.Popen[str]:
        return self.run_program("-n", slots, PROGRAM, *words)

    def run_program(self, *words: object) -> subprocess.Popen[str]:
        where = ["--listen", 0, "--token-file", self.token, "--report", "report.json"]
        job = self.start(0, "run", *where, *words)
        assert job.stderr
        for line in job.stderr:
            if found := PORT.search(line):
                self.address = f"{'10.77.0.1' if self.hosts else '127.0.0.1'}:{found[1]}"
                return job
        pytest.fail("it does not say where it listens")

    def agent(self, host: int, slots: int, *words: object) -> subprocess.Popen[str]:
        where = ["--join", self.address, "--token-file", self.token]
        return self.start(host, "agent", *where, "-n", slots, *words)

    def report(self) -> dict[str, Any]:
        return json.loads((self.folder / "report.json").read_text())


@contextmanager
def started(folder: Path, hosts: list[str] | None = None) -> Iterator[Job]:
    with ExitStack() as stack:
        job = Job(folder, hosts)
        try:
            yield job
        finally:
            for process in job.processes:
                process.kill()
                stack.enter_context(process)


@pytest.fixture(scope="module")
def alone(run_program: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("alone")
    words = [*DDL, "run", "-n", "1", PROGRAM]
    return final_state(run_program(words, cwd=folder, limit=LIMIT).expect_success().out)


@pytest.mark.slow
def test_a_job_of_two_agents(tmp_path: Path, alone: str) -> None:
    with started(tmp_path) as job:
        run = job.run(3, "--strike", "kill", "--members", 0)
        agents = [job.agent(0, 2), job.agent(0, 1)]
        out, err = run.communicate(timeout=LIMIT)
        assert run.returncode == 0, err
        assert final_state(out) == alone == job.report()["hash"]
        assert [agent.wait(LIMIT) for agent in agents] == [0, 0]
    assert re.search(
        r"rank 0 on \S+ \(pid \d+\) died \(SIGKILL\); \d of 12 shares recomputed; step", err
    )


@pytest.mark.slow
@needs_hosts
def test_an_agent_is_killed_with_all_its_workers(tmp_path: Path, alone: str) -> None:
    with Lab(2, None) as lab, started(tmp_path, [f"{lab.prefix}{n}" for n in range(2)]) as job:
        run = job.run(5, "--strike", "pause", "--members", "0,1,2,3,4")
        agents = [job.agent(0, 3), job.agent(1, 2)]
        assert run.stdout
        lines = [run.stdout.readline() for _ in range(5)]
        assert all("paused" in line for line in lines), lines
        agents[1].kill()
        (tmp_path / "go").touch()
        out, err = run.communicate(timeout=LIMIT)
        assert run.returncode == 0, err
        assert final_state(out) == alone
        assert agents[0].wait(LIMIT) == 0
        report = job.report()
    assert [e["cause"] for e in report["events"] if e["kind"] == "died"] == [
        "its agent is lost: it has ended"
    ] * 2
