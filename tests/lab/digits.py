# SPDX-License-Identifier: Apache-2.0
"""The digits example on four hosts, through every kind of launcher, ends with the same weights.

Not among the ordinary tests, for the time that PyTorch takes to start sixteen times and more: `make
test-digits`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ddl_launch.lab import Lab

sys.path.insert(0, str(Path(__file__).parent))

from slurm import Slurm, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "there is a Slurm")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train_digits.py"
TRAIN = [EXAMPLE, "--epochs", "2"]
DDLRUN = [sys.executable, "-m", "ddl_launch"]
HOSTS = "h1,h2,h3,h4"
LIMIT = 300.0
THREADS = {"OMP_NUM_THREADS": "1"}  # PyTorch's own sums depend on it

weights: dict[str, str] = {}  # the result of each way


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with Lab(4, rate="1gbit") as lab, Slurm(lab) as slurm:
        yield slurm


def library(mpirun: Path) -> str:
    return str(min((mpirun.parent.parent / "lib").glob("libmpi.so.*")))


def check(way: str, said: str) -> None:
    found = re.search(r"loss ([\d.]+) .* 4 processes.* weights (\w+)", said)
    assert found, said
    weights[way] = f"loss {found[1]}, weights {found[2]}"
    assert len(set(weights.values())) == 1, weights


@pytest.mark.parametrize("name", ["openmpi", "mpich", "intelmpi"])
def test_ddlrun(slurm: Slurm, name: str, mpirun_of: Callable[[str], Path], tmp_path: Path) -> None:
    command = [*DDLRUN, "--launcher", mpirun_of(name), "-H", HOSTS, *TRAIN]
    ended = slurm.run(command, env=THREADS, cwd=tmp_path, timeout=LIMIT)
    assert ended.returncode == 0, ended.stderr
    check(f"ddlrun by {name}", ended.stdout)


def test_open_mpi(slurm: Slurm, mpirun_of: Callable[[str], Path], tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    mpirun = mpirun_of("openmpi")
    given = {"MPI4PY_LIBMPI": library(mpirun), **THREADS}
    root = dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
    passed = [word for name in ("PATH", *given) for word in ("-x", name)]
    command = [mpirun, "-H", HOSTS, *passed, sys.executable, *TRAIN]
    ended = slurm.run(command, env={**given, **root}, cwd=tmp_path, timeout=LIMIT)
    assert ended.returncode == 0, ended.stderr
    check("Open MPI's mpirun", ended.stdout)


def test_mpich(slurm: Slurm, mpirun_of: Callable[[str], Path], tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    mpirun = mpirun_of("mpich")
    given = {"MPI4PY_LIBMPI": library(mpirun), **THREADS}
    command = [mpirun, "-launcher", "ssh", "-hosts", HOSTS, sys.executable, *TRAIN]
    ended = slurm.run(command, env=given, cwd=tmp_path, timeout=LIMIT)
    assert ended.returncode == 0, ended.stderr
    check("MPICH's mpirun", ended.stdout)


def test_srun(slurm: Slurm, tmp_path: Path) -> None:
    command = ["srun", "-N4", sys.executable, *TRAIN]
    ended = slurm.run(command, env=THREADS, cwd=tmp_path, timeout=LIMIT)
    assert ended.returncode == 0, ended.stderr
    check("srun", ended.stdout)


def test_ddlrun_by_srun(slurm: Slurm, tmp_path: Path) -> None:
    ended = slurm.run(["salloc", "-N4", *DDLRUN, *TRAIN], env=THREADS, cwd=tmp_path, timeout=LIMIT)
    assert ended.returncode == 0, ended.stderr
    check("ddlrun by srun", ended.stdout)
