# SPDX-License-Identifier: Apache-2.0
"""A whole host is lost in each phase of a join and of a checkpoint: with its agent, its worker and
all else, where a newcomer or a member has just come to this phase. The others go on soon, with the
undisturbed result, and the host comes back."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from waits import final_state, under_load, wait_until

from ddl_launch.lab import Lab, missing

sys.path.insert(0, str(Path(__file__).parents[1] / "elastic" / "programs"))

import steps

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=missing() or "there are labs"),
    pytest.mark.slow,
]

PROGRAM = Path(__file__).parents[1] / "elastic" / "programs" / "own_loop.py"
DDL = [sys.executable, "-m", "ddl_launch.commands", "elastic"]
LIMIT = 240  # seconds, on a busy machine
PASSES = ["--passes", "60"]  # 375 steps
SAVED = ["--checkpoint", "saved", "--every", "10"]
SLOW = "0.1"  # additional seconds of a share, until the case is complete
PORT = 29400
PROGRESS = 10.0  # seconds until the others have committed a step, whatever happened
FIRST, NEW = ["h2", "h3", "h4"], "h5"  # hosts of workers; the coordinator is on h1
# For each phase, the place where a worker is struck, see programs/moments.py.
PHASES = {
    "boot": {"newcomer": "warm-up"},
    "switch": {"newcomer": "hello, by a newcomer", "member": "switch"},
    "observe": {"newcomer": "observing", "member": "telling"},
    "checkpoint": {"member": "writing", "writer": "the manifest"},
}
CASES = [(phase, who) for phase, moments in PHASES.items() for who in moments]


@pytest.fixture(scope="module")
def alone(run_program: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The final state of one undisturbed worker."""
    words = [*DDL, "run", "-n", "1", PROGRAM, *PASSES]
    done = run_program(words, cwd=tmp_path_factory.mktemp("alone"), limit=LIMIT)
    return final_state(done.expect_success().out)


class Job:
    """A job with its coordinator on h1, and an agent with one slot on each other host."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self._lab, self._folder = lab, folder
        self._processes: list[subprocess.Popen[bytes]] = []
        (folder / "job.token").write_text("what only the job's agents know\n")
        self._token = ["--token-file", "job.token"]
        where = ["--listen", str(PORT), *self._token, "-n", f"{len(FIRST)}:{len(FIRST) + 1}"]
        words = [*PASSES, *SAVED, "--moments", "--tell"]
        self.run = self._start("h1", "run", *where, "--name", "job", str(PROGRAM), *words)
        wait_until(lambda: "waits for agents" in self.shown())

    def resume(self) -> None:
        """Start another coordinator on the restored host."""
        self.run = self._start("h1", "resume", "job")

    def agent(self, host: str) -> None:
        address = f"{self._lab.hosts[0].addresses[0]}:{PORT}"
        self._start(host, "agent", "--join", address, *self._token, "-n", "1")

    def _start(self, host: str, *words: str) -> subprocess.Popen[bytes]:
        with ExitStack() as stack:
            files = (self._folder / f"{host}.{kind}" for kind in ("out", "err"))
            out, err = (stack.enter_context(file.open("ab")) for file in files)
            command = self._lab.at(host, *DDL, *words)
            names = ("XDG_RUNTIME_DIR", "XDG_STATE_HOME")
            env = {**os.environ, **dict.fromkeys(names, str(self._folder))}
            process = subprocess.Popen(command, cwd=self._folder, stdout=out, stderr=err, env=env)
        self._processes.append(process)
        return process

    def shown(self) -> str:
        return (self._folder / "h1.err").read_text()

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(len(FIRST) + 2) as lab:
        yield lab


def begin(job: Job, folder: Path, moment: Path, how: str) -> None:
    """Train, and let one more worker join. The worker that reaches the moment is struck."""
    for host in FIRST:
        job.agent(host)
    wait_until(lambda: len(steps.trainers(folder, 1)) == len(FIRST))
    moment.write_text(how)
    job.agent(NEW)


def end(job: Job, folder: Path, alone: str) -> None:
    """Wait until all train, and compare with the state of one worker alone."""
    since = steps.last(folder)
    wait_until(lambda: len(steps.trainers(folder, since)) == len(FIRST) + 1)
    (folder / "slow").unlink()
    assert job.run.wait(LIMIT) == 0, job.shown()
    assert final_state((folder / "h1.out").read_text()) == alone


@pytest.mark.parametrize("loss", ["killed", "cut off"])
@pytest.mark.parametrize(("phase", "who"), CASES)
def test_a_host_is_lost_in_each_phase(
    lab: Lab, tmp_path: Path, alone: str, phase: str, who: str, loss: str
) -> None:
    """Either all processes of the host are killed at once, which its kernel reports, or its network
    is cut first, so that no report arrives, as after a power failure."""
    (tmp_path / "slow").write_text(SLOW)
    moment = tmp_path / f"die in {PHASES[phase][who]}"
    job = Job(lab, tmp_path)
    try:
        begin(job, tmp_path, moment, "hold")
        wait_until(lambda: (tmp_path / "held").exists() and not moment.exists())
        host = (tmp_path / "held").read_text().split()[0]
        assert host in ([NEW] if who == "newcomer" else [*FIRST, NEW])
        if loss == "cut off":
            lab.connect(host, False)
        since, began = steps.last(tmp_path), time.monotonic()
        lab.run(host, ["sh", "-c", "kill -9 -1"], timeout=LIMIT)
        limit = under_load(PROGRESS)
        wait_until(lambda: steps.last(tmp_path) > since, limit)
        print(f"{phase}, {who}, {loss}: a step {time.monotonic() - began:.2f} s later")
        wait_until(lambda: f"the agent on {host} is lost" in job.shown())
        lab.connect(host, True)
        job.agent(host)
        end(job, tmp_path, alone)
    finally:
        job.close()


@pytest.mark.parametrize("phase", PHASES)
def test_the_host_of_the_coordinator_is_lost_in_each_phase(
    lab: Lab, tmp_path: Path, alone: str, phase: str
) -> None:
    """The coordinator's host is lost without a report, as after a power failure, while a worker
    waits in the phase. The workers then continue, and another coordinator finds them once the host
    is restored."""
    (tmp_path / "slow").write_text(SLOW)
    moment = tmp_path / f"die in {list(PHASES[phase].values())[-1 if phase == 'checkpoint' else 0]}"
    job = Job(lab, tmp_path)
    try:
        begin(job, tmp_path, moment, "pause")
        wait_until(lambda: not moment.exists())
        lab.connect("h1", False)
        lab.run("h1", ["sh", "-c", "kill -9 -1"], timeout=LIMIT)
        since, began = steps.last(tmp_path), time.monotonic()
        (tmp_path / "go").touch()
        limit = under_load(PROGRESS)
        wait_until(lambda: steps.last(tmp_path) > since + 1, limit)
        print(f"{phase}, coordinator: two steps {time.monotonic() - began:.2f} s later")
        lab.connect("h1", True)
        job.resume()
        wait_until(lambda: "the coordinator is back" in job.shown())
        end(job, tmp_path, alone)
    finally:
        job.close()
