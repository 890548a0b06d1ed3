# SPDX-License-Identifier: Apache-2.0
"""mpi4jax's functions over ddl_jax; see programs/jax_mpi4jax.py."""

from pathlib import Path

import pytest
from conftest import Run

PROGRAMS = Path(__file__).parent / "programs"

# The program for mpi4jax, except its first two lines.
PROGRAM = """
from mpi4py import MPI
import mpi4jax
import jax
import jax.numpy as jnp

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()


@jax.jit
def step(x):
    total = mpi4jax.allreduce(x, op=MPI.SUM, comm=comm)
    ghost = mpi4jax.sendrecv(x, x, source=(rank - 1) % size, dest=(rank + 1) % size, comm=comm)
    return x - 0.1 * (x - total / size) + 0.01 * ghost


x = jnp.full(8, float(rank))
for _ in range(10):
    x = step(x)
everything = mpi4jax.gather(x, root=0, comm=comm)
slope = jax.grad(lambda x: (mpi4jax.allreduce(x, op=MPI.SUM) ** 2).sum())(jnp.ones(2))
if rank == 0:
    print(*everything.shape, float(everything.mean()), *slope.tolist())
"""


@pytest.mark.slow
@pytest.mark.usefixtures("jax_native")
@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_values(ddlrun: Run, size: int) -> None:
    ended = ddlrun(size, PROGRAMS / "jax_mpi4jax.py", limit=180).expect_success()
    assert ended.out.count("done ") == 4 * size, ended.out


@pytest.mark.usefixtures("jax_native")
def test_a_program_moves_over_by_two_lines(ddlrun: Run) -> None:
    changed = PROGRAM.replace("from mpi4py import MPI", "from ddl_jax.mpi4jax import MPI")
    changed = changed.replace("import mpi4jax\n", "import ddl_jax.mpi4jax as mpi4jax\n", 1)
    ended = ddlrun(3, changed).expect_success()
    printed = [float(each) for each in ended.lines(0)[0].split()]
    assert printed == pytest.approx([3, 8, 1.01**10, 6, 6], rel=1e-5)
