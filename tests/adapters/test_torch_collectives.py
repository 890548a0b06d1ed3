# SPDX-License-Identifier: Apache-2.0
"""The backend "ddl" on real processes: operations, works and futures, training, and ddl_torch's own
names. The programs are in programs/."""

import re
from pathlib import Path

import pytest
from conftest import Mpi, Run

PROGRAMS = Path(__file__).parent / "programs"

pytestmark = pytest.mark.usefixtures("torch_native")


TCP = {"DDL_LINKS": "tcp"}


LEAST = {"collectives": 500, "operations": 500, "gradients": 100}  # checks, by program


@pytest.mark.parametrize(
    ("programs", "size", "env"),
    [
        (
            "operations messages collectives async gradients invariant"
            " DDL_LINKS=tcp DDL_INVARIANT=size invariant",
            *(3, {}),
        ),
        *(
            pytest.param(programs, size, env, marks=pytest.mark.slow)
            for programs, sizes, env in (
                ("collectives", (1, 2, 4), {}),
                ("operations", (1, 4), {}),
                ("messages", (2, 4), {}),
                ("async", (1, 2), {}),
                ("invariant", (2, 4), {}),
                ("invariant", (3,), {**TCP, "DDL_TORCH_NATIVE": "0"}),
                ("training", (1, 2, 3), {}),
                ("api", (1, 3), {}),
                ("own_training", (1, 3), {}),
            )
            for size in sizes
        ),
    ],
)
def test_programs(ddlrun: Run, programs: str, size: int, env: dict[str, str]) -> None:
    """The programs run in the same processes, which import PyTorch once."""
    files = [word if "=" in word else f"torch_{word}" for word in programs.split()]
    words = " ".join(files)
    ended = ddlrun(size, PROGRAMS / "several.py", words, env=env, limit=300).expect_success()
    names = [word for word in programs.split() if "=" not in word]
    for rank in range(size):
        lines = "\n".join(ended.lines(rank))
        numbers = re.findall(r"^(?:checked (\d+)|done|trained)$", lines, re.M)
        for name, number in zip(names, numbers, strict=True):
            assert int(number or 0) >= LEAST.get(name, 0)


@pytest.mark.slow
@pytest.mark.parametrize("sample", [["sample"], pytest.param([], id="whole")])
def test_gradients_of_functional_collectives(ddlrun: Run, sample: list[str]) -> None:
    program = PROGRAMS / "torch_functional.py"
    ended = ddlrun(2, program, *sample, limit=180).expect_success()
    numbers = [int(number) for number in re.findall(r"checked (\d+)", ended.out)]
    assert len(numbers) == 2 and min(numbers) > (50 if sample else 60)


@pytest.mark.parametrize(
    "mpi", ["openmpi", pytest.param("mpich", marks=pytest.mark.slow)], indirect=True
)
def test_own_names_under_mpirun(mpi: Mpi, run_here: Run) -> None:
    """ddl_core finds the ranks of either mpirun: core/test_mpi.py."""
    command = mpi.command(2, PROGRAMS / "torch_api.py")
    ended = run_here(command, env=mpi.environment, limit=180).expect_success()
    assert ended.out.count("done") == 2


@pytest.mark.slow
def test_debug_wrapper(ddlrun: Run) -> None:
    text = """
import torch, torch.distributed as dist
import ddl_torch as ddl
ddl.init()
assert ddl.allreduce(torch.ones(3)).tolist() == [2.0] * 3
assert ddl.local_size() == 2
dist.barrier()
ddl.shutdown()
print("done")
"""
    ended = ddlrun(2, text, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, limit=120).expect_success()
    assert ended.out.count("done") == 2
