# SPDX-License-Identifier: Apache-2.0
"""Half of a job's workers, with the lowest rank, are lost with their host; or the network is cut
between two halves. The coordinator is asked by those that cannot tell the two cases apart."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ddl_launch.lab import Lab, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "there are labs")

PROGRAM = Path(__file__).parents[1] / "elastic" / "programs" / "own_loop.py"
DDL = [sys.executable, "-m", "ddl_launch.commands", "elastic"]
LIMIT = 240  # seconds, on a busy machine
PORT = 29400
WORKERS = 4
STATE = re.compile(r"^\[\d\] state (\w{64})$", re.M)


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(3) as lab:
        yield lab


@pytest.fixture(scope="module")
def alone(run_program: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The final state of one undisturbed worker."""
    folder = tmp_path_factory.mktemp("alone")
    done = run_program([*DDL, "run", "-n", "1", PROGRAM], cwd=folder, limit=LIMIT)
    (found,) = STATE.findall(done.expect_success().out)
    return str(found)


class Job:
    """A job with its coordinator on h1, and two slots on each of two hosts, of which the first has
    ranks 0 and 1. All workers wait in step 5."""

    def __init__(self, lab: Lab, folder: Path, first: str, second: str) -> None:
        self._lab, self._folder = lab, folder
        self._processes: list[subprocess.Popen[bytes]] = []
        (folder / "job.token").write_text("what only the job's agents know\n")
        token = ["--token-file", "job.token"]
        where = ["run", "--listen", str(PORT), *token, "-n", str(WORKERS), "--no-replace"]
        strike = ["--strike", "pause", "--members", "0,1,2,3"]
        self.run = self._start("h1", "run", *where, str(PROGRAM), *strike)
        wait_until(lambda: "waits for agents" in self.error("run"))
        for count, host in enumerate((first, second), start=1):
            address = lab.hosts[0].addresses[0]
            join = ["agent", "--join", f"{address}:{PORT}", *token, "-n", "2", "--wait", "2"]
            self._start(host, host, *join)
            wait_until(lambda count=count: self._connections() == 3 * count)  # type: ignore[misc]
        wait_until(lambda: self.out("run").count("paused") == WORKERS)

    def _start(self, host: str, name: str, *words: str) -> subprocess.Popen[bytes]:
        command = self._lab.at(host, *DDL, *words)
        with ExitStack() as stack:
            files = (self._folder / f"{name}.{kind}" for kind in ("out", "err"))
            out, err = (stack.enter_context(file.open("wb")) for file in files)
            process = subprocess.Popen(command, cwd=self._folder, stdout=out, stderr=err)
        self._processes.append(process)
        return process

    def _connections(self) -> int:
        """Return the connections to the coordinator: one for each agent, and one for each of its
        slots."""
        table = self._lab.run("h1", ["cat", "/proc/net/tcp"], timeout=LIMIT).stdout
        return len(re.findall(rf"^\s*\d+: \w+:{PORT:04X} \w+:\w+ 01 ", table, re.M))

    def out(self, name: str) -> str:
        return (self._folder / f"{name}.out").read_text()

    def error(self, name: str) -> str:
        return (self._folder / f"{name}.err").read_text()

    def go_on(self) -> None:
        (self._folder / "go").touch()

    def wait(self) -> list[int]:
        """Return the exit codes of the remaining processes: the coordinator and the agents."""
        return [process.wait(LIMIT) for process in self._processes]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture
def start(lab: Lab, tmp_path: Path) -> Iterator[Callable[[str, str], Job]]:
    jobs: list[Job] = []

    def start(first: str, second: str) -> Job:
        jobs.append(Job(lab, tmp_path, first, second))
        return jobs[-1]

    yield start
    for job in jobs:
        job.close()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, f"not so within {LIMIT} s"
        time.sleep(0.05)


@pytest.mark.slow
def test_the_host_of_the_lower_half_is_killed(
    lab: Lab, alone: str, start: Callable[[str, str], Job]
) -> None:
    job = start("h2", "h3")
    lab.run("h2", ["sh", "-c", "kill -9 -1"], timeout=LIMIT)
    job.go_on()
    assert job.run.wait(LIMIT) == 0, job.error("run")
    assert STATE.findall(job.out("run")) == [alone]
    assert "the coordinator allows rank 2, rank 3 to continue without rank 0, rank 1" in job.error(
        "run"
    )


@pytest.mark.slow
@pytest.mark.parametrize("first, second", [("h1", "h2"), ("h2", "h1")])
def test_the_network_is_cut_between_two_halves(
    lab: Lab, alone: str, start: Callable[[str, str], Job], first: str, second: str
) -> None:
    """The half with the lowest rank continues, wherever the coordinator is; the other half ends."""
    job = start(first, second)
    lab.connect("h2", False)
    wait_until(lambda: "coordinator is lost" in job.error("h2"))  # else what is written is lost
    job.go_on()
    run, *_ = job.wait()
    found = [name for name in ("run", "h1", "h2") if STATE.findall(job.out(name))]
    assert found == ["run" if first == "h1" else "h2"], job.error("run")
    assert STATE.findall(job.out(found[0])) == [alone]
    assert (run == 0) == (first == "h1"), job.error("run")
