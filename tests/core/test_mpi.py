# SPDX-License-Identifier: Apache-2.0
"""mpirun of Open MPI and of MPICH, from their wheels: init finds the world by mpi4py."""

import re
from pathlib import Path

import pytest
from conftest import Mpi, Run

COLLECTIVES = Path(__file__).parent.parent / "matrix" / "program.py"


def write(folder: Path, text: str) -> Path:
    program = folder / "program.py"
    program.write_text(text)
    return program


@pytest.mark.parametrize("size", [2, 3])
def test_collectives(mpi: Mpi, run_here: Run, size: int) -> None:
    command = mpi.command(size, COLLECTIVES)
    ended = run_here(command, env=mpi.environment, limit=120).expect_success()
    found = re.findall(r"local (\d) (\d)", ended.out)
    assert sorted(found) == [(str(rank), str(size)) for rank in range(size)]
    assert re.search(r"\d+ cases", ended.out)


def test_ranks_are_those_of_mpi(mpi: Mpi, run_here: Run, tmp_path: Path) -> None:
    text = """
import logging
from mpi4py import MPI
import ddl_core
logging.basicConfig(level=logging.INFO)
for _ in range(2):
    with ddl_core.init() as comm:
        world = MPI.COMM_WORLD
        assert (comm.rank, comm.size) == (world.rank, world.size)
print("same as MPI")
"""
    command = mpi.command(3, write(tmp_path, text))
    ended = run_here(command, env=mpi.environment, limit=120).expect_success()
    assert ended.out.count("same as MPI") == 3
    assert re.search(r"rank 2 of 3, launcher: mpirun", ended.err)


def test_rank_that_does_not_come(mpi: Mpi, run_here: Run, tmp_path: Path) -> None:
    text = """
import time
from mpi4py import MPI
import ddl_core
if MPI.COMM_WORLD.rank == 1:
    time.sleep(4)
else:
    started = time.monotonic()
    try:
        ddl_core.init(ddl_core.Config(timeout=1))
    except ddl_core.DdlError as error:
        # mpirun may end before it has passed on what an aborted rank has printed.
        with open("told", "w") as file:
            print(type(error).__name__, time.monotonic() - started < 3.5, error, file=file)
MPI.COMM_WORLD.Abort(3)
"""
    command = mpi.command(2, write(tmp_path, text))
    run_here(command, env=mpi.environment, limit=120)
    told = (tmp_path / "told").read_text()
    assert "TimedOut True not all of the 2 MPI ranks called init within 1 s" in told


def test_another_mpi_than_mpiruns(mpi: Mpi, run_here: Run, tmp_path: Path) -> None:
    """A rank whose mpi4py was built for the other MPI is alone in its world."""
    text = """
import os
for name in list(os.environ):
    if name.startswith(("PMI", "OMPI_", "PMIX_")):
        del os.environ[name]
import mpi4py.MPI
os.environ |= {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
import ddl_core
try:
    ddl_core.init()
except ddl_core.DdlError as error:
    print(type(error).__name__, error)
"""
    command = mpi.command(1, write(tmp_path, text))[-2:]
    ended = run_here(command, env=mpi.environment, limit=120).expect_success()
    assert re.match("Refused mpirun started this process as rank 1 of 2, but mpi4py", ended.out)
    assert "reports 1 ranks" in ended.out
