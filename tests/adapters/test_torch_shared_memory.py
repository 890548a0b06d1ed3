# SPDX-License-Identifier: Apache-2.0
"""Tensors in memory that ranks on one host share: DDL_TORCH_SHARED, `init(shared_memory=...)`."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import Finished, Run

PROGRAM = Path(__file__).parent / "programs" / "torch_shared_memory.py"

pytestmark = pytest.mark.usefixtures("torch_native")


@pytest.mark.slow
def test_like_other_memory(ddlrun: Run) -> None:
    names = ["training", "as_before", "loader"]
    ended = ddlrun(2, PROGRAM, *names, limit=300).expect_success()
    assert [ended.out.count(f"done {name}") for name in names] == [2, 2, 2]


@pytest.mark.slow
def test_death(unwatched: Callable[[int, str], list[Finished]]) -> None:
    """The error is the same as with other memory, and no other process writes to the tensor
    afterwards."""
    text = "import runpy, sys; sys.argv = ['', 'death']\n"
    survivor, dead = unwatched(2, text + f"runpy.run_path({str(PROGRAM)!r}, run_name='__main__')")
    assert dead.code == -9 and "done death" in survivor.expect_success().out


ENVIRONMENT = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("ddl")
model = DistributedDataParallel(torch.nn.Linear(500, 500), gradient_as_bucket_view=True)
model(torch.ones(1, 500)).sum().backward()
address = model.module.weight.grad.data_ptr()
for line in open("/proc/self/maps"):
    start, end = (int(part, 16) for part in line.split()[0].split("-"))
    if start <= address < end:
        print("shared", "memfd:libddl" in line)
model = DistributedDataParallel(torch.nn.Linear(300, 300, dtype=torch.complex64))
model(torch.full((1, 300), dist.get_rank() + 1j)).abs().sum().backward()
mine = model.module.weight.grad.clone()
dist.all_reduce(mine, dist.ReduceOp.AVG)
torch.testing.assert_close(mine, model.module.weight.grad)
backend = dist.group.WORLD._get_backend(torch.device("cpu"))
memory = backend.allocate_tensor(4, dtype=torch.complex64, device=torch.device("cpu"))
assert memory.shape == (4,) and memory.is_complex()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_environment(run_here: Run, find_port: Callable[[], int]) -> None:
    """A program without the option, ranks with different options, and one rank without peers."""

    def start(rank: int) -> Finished:
        env = {**master, "RANK": str(rank), "WORLD_SIZE": str(len(choices))}
        env |= {"DDL_TORCH_SHARED": choices[rank]}
        command = [sys.executable, "-c", ENVIRONMENT]
        ended: Finished = run_here(command, env=env, limit=100)
        return ended.expect_success()

    for choices, shared in ((["0", "1"], [False, True]), ([""], [False])):
        master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_port())}
        with ThreadPoolExecutor(2) as pool:
            found = [ended.out for ended in pool.map(start, range(len(choices)))]
        assert found == [f"shared {each}\n" for each in shared]


def test_wrong_choices(run_here: Run) -> None:
    text = """
import ddl_torch as ddl
from ddl_core.errors import InvalidArgument
for choice in ("some", None):
    try:
        ddl.init(shared_memory=choice)
    except InvalidArgument as error:
        print(error)
"""
    command = [sys.executable, "-c", text]
    ended = run_here(command, env={"DDL_TORCH_SHARED": "yes"}, limit=100)
    lines = ended.expect_success().out.splitlines()
    assert lines == [
        "shared_memory is 'some'; must be one of None, False, True, \"all\"",
        'DDL_TORCH_SHARED is "yes"; must be 0, 1 or all',
    ]
