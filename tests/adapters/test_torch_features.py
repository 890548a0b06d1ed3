# SPDX-License-Identifier: Apache-2.0
"""Features of PyTorch that use process groups, over "ddl", and PyTorch's own tests of backends."""

import re
import sys
from pathlib import Path

import pytest
from conftest import Run

FOLDER = Path(__file__).parent

pytestmark = pytest.mark.usefixtures("torch_native")


@pytest.mark.parametrize(
    ("size", "features"),
    [
        pytest.param(2, "compiled inductor gloo", marks=pytest.mark.slow),
        (3, "fsdp2 dtensor zero1 checkpoint zero_hooks quantization_hooks shrink"),
        pytest.param(2, "all_hooks quantization_hooks", marks=pytest.mark.slow),
        pytest.param(3, "all_hooks zero_hooks", marks=pytest.mark.slow),
        pytest.param(4, "mesh2d", marks=pytest.mark.slow),
    ],
)
def test_features(ddlrun: Run, size: int, features: str) -> None:
    names = features.split()
    program = FOLDER / "programs" / "torch_features.py"
    ended = ddlrun(size, program, *names, limit=300).expect_success()
    assert [ended.out.count(f"done {name}") for name in names] == [size] * len(names)


@pytest.mark.slow
def test_sample_of_the_suite(run_here: Run) -> None:
    """Run a sample of PyTorch's own tests; `make test-torch` runs all."""
    command = [sys.executable, FOLDER / "torch_suite.py", "--sample"]
    ended = run_here(command, limit=300).expect_success()
    assert re.search(r"^\d\d passed, 0 failed$", ended.out, re.MULTILINE), ended.out


@pytest.mark.slow
def test_suite_notices(run_here: Run, tmp_path: Path) -> None:
    """The suite reports a test that must pass and fails, and one that passes but is not listed."""
    program = tmp_path / "program.py"
    program.write_text(f"""
import sys
sys.path.insert(0, {str(FOLDER)!r})
import torch_suite
from pathlib import Path
torch_suite.PASSING = Path("listed.txt")
torch_suite.PASSING.write_text("test_all_to_all_cuda")
sys.exit(torch_suite.main())
""")
    command = [sys.executable, program, "test_all_to_all_cuda", "test_gather"]
    ended = run_here(command, limit=100)
    assert ended.code == 1
    assert ended.out.endswith("0 passed, 2 failed\n")
    assert "skipped " in ended.out and "Only NCCL supports CUDA all_to_all" in ended.out


@pytest.mark.slow
def test_torchrun_restarts(run_here: Run, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("""
import os, signal
import torch
import torch.distributed as dist
dist.init_process_group("ddl")
rank = dist.get_rank()
tensor = torch.ones(1000) * (rank + 1)
dist.all_reduce(tensor)
assert tensor[0] == 3
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
print(f"rank {rank} after {os.environ['TORCHELASTIC_RESTART_COUNT']} restarts", flush=True)
dist.destroy_process_group()
""")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    options = ["--nproc-per-node", "2", "--max-restarts", "2"]
    ended = run_here([*torchrun, *options, program], limit=120).expect_success()
    # The lines of two ranks may be mixed here.
    for rank in range(2):
        assert ended.out.count(f"rank {rank} after 1 restarts") == 1
    assert ended.out.count("restarts") == 2
