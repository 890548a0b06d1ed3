# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs on hosts: agents that mpirun or srun starts, and agents that are tasks of a Slurm
array, one of which is cancelled."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddl_launch.lab import Lab

sys.path.insert(0, str(Path(__file__).parent))

from slurm import Slurm, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a Slurm")

PROGRAM = Path(__file__).parents[1] / "elastic" / "programs" / "own_loop.py"
DDL = f"{sys.executable} -m ddl_launch.commands elastic"
LIMIT = 240  # seconds, on a busy machine


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with Lab(3) as lab, Slurm(lab) as slurm:
        yield slurm


def state(out: str) -> str:
    (found,) = re.findall(r"^\[\d\] state (\w{64})$", out, re.M)
    return str(found)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline, f"not so within {LIMIT} s"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def alone(slurm: Slurm, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The final state of one undisturbed worker."""
    folder = tmp_path_factory.mktemp("alone")
    ended = slurm.run([*DDL.split(), "run", "-n", "1", PROGRAM], cwd=folder, timeout=LIMIT)
    return state(ended.stdout)


@pytest.mark.parametrize("launcher", [pytest.param("mpirun", marks=pytest.mark.slow), "srun"])
def test_given_hosts(slurm: Slurm, alone: str, launcher: str, tmp_path: Path) -> None:
    """A worker on the second host is killed."""
    where = ["salloc", "-N2"] if launcher == "srun" else []
    order = ["run", "--report", "report.json", "-H", "h1:1,h2:2", PROGRAM]
    strike = ["--strike", "kill", "--members", "2"]
    command = [*where, *DDL.split(), *order, *strike]
    ended = slurm.run(command, cwd=tmp_path, timeout=LIMIT)
    assert ended.returncode == 0, ended.stderr
    assert state(ended.stdout) == alone
    assert "died (SIGKILL)" in ended.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    hosts = {e["host"] for e in report["events"] if e["kind"] == "died"}
    assert hosts and hosts <= {"h1", "h2"}


@pytest.mark.slow
def test_the_coordinator_of_given_hosts_is_killed(slurm: Slurm, alone: str, tmp_path: Path) -> None:
    """The coordinator's agents and workers stay, and another coordinator takes its place."""
    env = {
        **slurm.clean(),
        **dict.fromkeys(("XDG_RUNTIME_DIR", "XDG_STATE_HOME"), str(tmp_path)),
    }
    order = [*DDL.split(), "run", "-H", "h1:1,h2:1", "--name", "job", PROGRAM]
    command = slurm.lab.at("h1", *order, "--strike", "pause", "--members", "0,1")
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        run = subprocess.Popen(command, cwd=tmp_path, stdout=out, stderr=err, env=env)
        try:
            wait_until(lambda: {*(tmp_path / "out").read_text().split()} >= {"[0]", "[1]"})
        finally:
            run.kill()
            run.wait()
    again = slurm.lab.at("h1", *DDL.split(), "resume", "job")
    with (tmp_path / "err").open("w") as err:
        another = subprocess.Popen(
            again, cwd=tmp_path, stdout=subprocess.PIPE, stderr=err, env=env, text=True
        )
        try:
            wait_until(lambda: "the coordinator is back" in (tmp_path / "err").read_text())
            (tmp_path / "go").touch()
            stdout, _ = another.communicate(timeout=LIMIT)
        finally:
            another.kill()
            another.wait()
    assert another.returncode == 0, (tmp_path / "err").read_text()
    assert state(stdout) == alone


def test_a_host_that_is_not_there(slurm: Slurm, tmp_path: Path) -> None:
    order = [*DDL.split(), "run", "-H", "h9:1", PROGRAM]
    ended = slurm.run(order, cwd=tmp_path, timeout=LIMIT)
    assert ended.returncode == 2, ended.stderr
    assert "no agent on h9: exit code" in ended.stderr


@pytest.mark.slow
def test_an_array_of_agents(slurm: Slurm, alone: str, tmp_path: Path) -> None:
    (tmp_path / "job.token").write_text("what only the job's agents know\n")
    where = ["--listen", "29400", "--token-file", "job.token", "-n", "3"]
    order = [*DDL.split(), "run", *where, PROGRAM, "--strike", "pause", "--members", "0,1,2"]
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        job = subprocess.Popen(
            slurm.lab.at("h1", *order), cwd=tmp_path, stdout=out, stderr=err, env=slurm.clean()
        )
    try:
        agent = f"{DDL} agent --join h1:29400 --token-file job.token -n 1"
        sent = slurm.run(
            ["sbatch", "--parsable", "-N1", "--array=1-3", "--wrap", agent], cwd=tmp_path
        )
        assert sent.returncode == 0, sent.stderr
        wait_until(lambda: (tmp_path / "out").read_text().count("paused") == 3)
        slurm.run(["scancel", f"{sent.stdout.strip()}_2"])
        wait_until(lambda: "is lost" in (tmp_path / "err").read_text())
        (tmp_path / "go").touch()
        assert job.wait(LIMIT) == 0, (tmp_path / "err").read_text()
        assert state((tmp_path / "out").read_text()) == alone
        wait_until(lambda: slurm.run(["squeue", "--noheader"]).stdout == "")
    finally:
        job.kill()
        job.wait()
