# SPDX-License-Identifier: Apache-2.0
"""srun, and ddlrun in allocations and batch jobs, with a real Slurm on the hosts of a
laboratory."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from waits import wait_until

from ddl_launch.lab import Lab

sys.path.insert(0, str(Path(__file__).parent))

from slurm import Slurm, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a Slurm")

DDLRUN = [sys.executable, "-m", "ddl_launch"]
SUM = """
import socket, numpy as np, ddl_core
comm = ddl_core.init()
x = np.full(3, comm.rank + 1.0)
comm.allreduce(x)
print(comm.rank, comm.size, socket.gethostname(), comm.local_rank, int(x[0]))
"""
DIE = """
import os, numpy as np, ddl_core
comm = ddl_core.init()
while True:
    comm.allreduce(np.ones(1000))
    if comm.rank == 2:
        os.kill(os.getpid(), 9)
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with Lab(4) as lab, Slurm(lab) as slurm:
        yield slurm


@pytest.fixture(autouse=True)
def idle_nodes(slurm: Slurm) -> None:
    """Wait until a job of the previous test has ended, because this one would get other nodes."""
    nodes = ["sinfo", "--noheader", "--Node", "--format=%T"]
    wait_until(lambda: set(slurm.run(nodes).stdout.split()) == {"idle"})


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(SUM)
    return path


def ranks(hosts: list[str]) -> list[str]:
    """Return the expected output of SUM on each rank."""
    n = len(hosts)
    return [
        f"{rank} {n} {host} {hosts[:rank].count(host)} {n * (n + 1) // 2}"
        for rank, host in enumerate(hosts)
    ]


@pytest.mark.parametrize("pmi", ["none", "pmi2", "pmix"])
def test_srun(slurm: Slurm, program: Path, pmi: str) -> None:
    if pmi == "pmix" and not slurm.has_pmix:
        pytest.skip("no PMIx (Debian: libpmix2)")
    command = ["srun", f"--mpi={pmi}", "-N2", "--ntasks-per-node=2", sys.executable, program]
    ended = slurm.run(command)
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == ranks(["h1", "h1", "h2", "h2"])


def test_ddlrun_takes_the_hosts_of_the_allocation(slurm: Slurm, program: Path) -> None:
    ended = slurm.run(["salloc", "-N3", "--ntasks-per-node=2", *DDLRUN, program])
    assert ended.returncode == 0, ended.stderr
    hosts = ["h1", "h1", "h2", "h2", "h3", "h3"]
    said = [
        f"[{r} {h}] {line}" for r, (h, line) in enumerate(zip(hosts, ranks(hosts), strict=True))
    ]
    assert sorted(ended.stdout.splitlines()) == said


def test_number_of_ranks_is_the_users(slurm: Slurm, program: Path) -> None:
    """More ranks than Slurm has granted cores, and in an order other than Slurm's."""
    ended = slurm.run(["salloc", "-N2", *DDLRUN, "-n", "4", "--no-prefix", program])
    assert sorted(ended.stdout.splitlines()) == ranks(["h1", "h1", "h2", "h2"]), ended.stderr
    order = program.parent / "ranks"
    order.write_text("rank 0=h2\nrank 1=h1\nrank 2=h2\n")
    ended = slurm.run(["salloc", "-N2", *DDLRUN, "-rf", order, "--no-prefix", program])
    assert sorted(ended.stdout.splitlines()) == ranks(["h2", "h1", "h2"]), ended.stderr


def test_killed_rank_ends_the_job(slurm: Slurm, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(DIE)
    ended = slurm.run(["salloc", "-N3", *DDLRUN, "-n", "6", program])
    assert ended.returncode == 128 + signal.SIGKILL
    assert ended.stderr.count("rank 2 on h2 (pid ") == 2  # when it happens, and in the summary
    assert slurm.run(["squeue", "--noheader"]).stdout == ""


def test_submitted_job(slurm: Slurm, program: Path) -> None:
    folder = program.parent
    command = [*DDLRUN, "--submit", "slurm", "-nodes", "2", "-accelerators", "2", "--no-prefix"]
    command += ["--name", "job", "--submitarg", "--time=5", "program.py"]
    ended = slurm.run(command, cwd=folder)
    assert ended.returncode == 0, ended.stderr
    assert "job.slurm: Submitted batch job" in ended.stderr
    first = (folder / "job.slurm").read_text()
    deadline = time.monotonic() + 60
    while slurm.run(["squeue", "--noheader"]).stdout:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    (output,) = folder.glob("job.*.out")
    said = [line for line in output.read_text().splitlines() if not line.startswith("ddlrun:")]
    assert sorted(said) == ranks(["h1", "h1", "h2", "h2"])
    again = slurm.run([*command[:3], "--dry-run", *command[3:]], cwd=folder)
    assert again.stdout.splitlines() == [
        line for line in first.splitlines() if "digest" not in line
    ]


def test_refused_submission(slurm: Slurm, program: Path) -> None:
    command = [*DDLRUN, "--submit", "slurm", "-nodes", "2", "-accelerators", "1"]
    command += ["--submitarg", "--partition=none", program.name]
    ended = slurm.run(command, cwd=program.parent)
    assert ended.returncode == 1
    assert "ddlrun: sbatch rejected program.slurm: " in ended.stderr


def test_ddlrun_by_srun_is_refused(slurm: Slurm, program: Path) -> None:
    ended = slurm.run(["srun", "-N2", *DDLRUN, "-n", "2", program])
    assert ended.returncode == 2
    assert "srun started ddlrun 2 times: start ddlrun once" in ended.stderr


def test_rank_alone_in_a_batch_shell(slurm: Slurm, program: Path) -> None:
    """Slurm's variables without srun do not make a rank wait for others."""
    ended = slurm.run(["salloc", "-N2", sys.executable, program])
    assert ended.stdout == "0 1 h1 0 1\n", ended.stderr
