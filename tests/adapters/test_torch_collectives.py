# SPDX-License-Identifier: Apache-2.0
"""The backend "ddl": operations, works and futures, training, and ddl_torch's own names, each on
real processes. What is checked is in programs/."""

import re
from pathlib import Path

import pytest
from conftest import Mpi, Run

PROGRAMS = Path(__file__).parent / "programs"

pytestmark = pytest.mark.usefixtures("torch_native")


def sizes(*always: int, slow: tuple[int, ...] = ()) -> pytest.MarkDecorator:
    """Numbers of ranks: some in `make test`, the others in `make test-torch`."""
    others = [pytest.param(size, marks=pytest.mark.slow) for size in slow]
    return pytest.mark.parametrize("size", [*always, *others])


@sizes(3, slow=(1, 2, 4))
def test_collectives(ddlrun: Run, size: int) -> None:
    ended = ddlrun(size, PROGRAMS / "torch_collectives.py", limit=180).expect_success()
    numbers = [int(number) for number in re.findall(r"checked (\d+)", ended.out)]
    assert len(numbers) == size and min(numbers) > 500


@sizes(4, slow=(1, 3))
def test_operations(ddlrun: Run, size: int) -> None:
    ended = ddlrun(size, PROGRAMS / "torch_operations.py", limit=180).expect_success()
    numbers = [int(number) for number in re.findall(r"checked (\d+)", ended.out)]
    assert len(numbers) == size and min(numbers) > 500


@sizes(4, slow=(2,))
def test_messages(ddlrun: Run, size: int) -> None:
    ended = ddlrun(size, PROGRAMS / "torch_messages.py", limit=180).expect_success()
    assert ended.out.count("done") == size


@sizes(3, slow=(1, 2))
def test_async(ddlrun: Run, size: int) -> None:
    ended = ddlrun(size, PROGRAMS / "torch_async.py", limit=180).expect_success()
    assert ended.out.count("done") == size


@pytest.mark.parametrize(
    ("size", "environment"),
    [
        (2, {}),
        (3, {"DDL_LINKS": "tcp", "DDL_INVARIANT": "size"}),
        pytest.param(3, {"DDL_LINKS": "tcp", "DDL_TORCH_NATIVE": "0"}, marks=pytest.mark.slow),
        pytest.param(4, {}, marks=pytest.mark.slow),
    ],
)
def test_invariant_sums(ddlrun: Run, size: int, environment: dict[str, str]) -> None:
    program = PROGRAMS / "torch_invariant.py"
    ended = ddlrun(size, program, env=environment, limit=180).expect_success()
    assert ended.out.count("done") == size


@pytest.mark.slow
@sizes(2, slow=(1, 3))
def test_training(ddlrun: Run, size: int) -> None:
    ended = ddlrun(size, PROGRAMS / "torch_training.py", limit=180).expect_success()
    assert ended.out.count("trained") == size


@pytest.mark.slow
@sizes(3, slow=(1,))
def test_own_names(ddlrun: Run, size: int) -> None:
    ended = ddlrun(size, PROGRAMS / "torch_api.py", limit=180).expect_success()
    assert ended.out.count("done") == size


def test_gradients(ddlrun: Run) -> None:
    ended = ddlrun(3, PROGRAMS / "torch_gradients.py", limit=180).expect_success()
    numbers = [int(number) for number in re.findall(r"checked (\d+)", ended.out)]
    assert len(numbers) == 3 and min(numbers) > 100


@pytest.mark.slow
@pytest.mark.parametrize("sample", [["sample"], pytest.param([], id="whole")])
def test_gradients_of_functional_collectives(ddlrun: Run, sample: list[str]) -> None:
    program = PROGRAMS / "torch_functional.py"
    ended = ddlrun(2, program, *sample, limit=180).expect_success()
    numbers = [int(number) for number in re.findall(r"checked (\d+)", ended.out)]
    assert len(numbers) == 2 and min(numbers) > (50 if sample else 60)


@pytest.mark.slow
@sizes(3, slow=(1,))
def test_own_training(ddlrun: Run, size: int) -> None:
    ended = ddlrun(size, PROGRAMS / "torch_own_training.py", limit=180).expect_success()
    assert ended.out.count("done") == size


def test_own_names_under_mpirun(mpi: Mpi, run_program: Run, tmp_path: Path) -> None:
    command = mpi.command(2, PROGRAMS / "torch_api.py")
    ended = run_program(command, cwd=tmp_path, env=mpi.environment, limit=180).expect_success()
    assert ended.out.count("done") == 2


@pytest.mark.slow
@pytest.mark.parametrize("debug", ["DETAIL"])
def test_debug_wrapper(ddlrun: Run, debug: str) -> None:
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
    ended = ddlrun(2, text, env={"TORCH_DISTRIBUTED_DEBUG": debug}, limit=120).expect_success()
    assert ended.out.count("done") == 2
