# SPDX-License-Identifier: Apache-2.0
"""PyTorch's tensors on accelerators: libddl uses the memory of NVIDIA's GPUs directly, and copies
other tensors through host memory. The GPU, and the device "cuda" in a build of PyTorch for CPUs,
are stand-ins."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
from conftest import Finished, Run, library_path

pytestmark = pytest.mark.usefixtures("torch_native")

FOLDER = Path(__file__).parent
PROGRAM = FOLDER / "programs" / "torch_cuda.py"
OWN = FOLDER / "programs" / "torch_cuda_own.py"
ELASTIC = FOLDER / "programs" / "torch_cuda_elastic.py"

BUILD = """
import sys
from torch.utils.cpp_extension import load
source, folder, standin = sys.argv[1:]
load("cuda_device", [source], build_directory=folder, extra_cflags=["-O0"],
     extra_include_paths=["%s"], extra_ldflags=[f"-L{standin}", "-l:libcuda.so.1"])
""" % (FOLDER.parent.parent / "libddl" / "tests" / "cuda_standin")


@pytest.fixture(scope="module")
def env(cuda_standin: Path) -> dict[str, str]:
    """Return the environment of a process with both stand-ins; PyTorch's is loaded before
    PyTorch."""
    torch = importlib.util.find_spec("torch")
    assert torch is not None and torch.origin is not None
    return library_path(cuda_standin, Path(torch.origin).parent / "lib")


@pytest.fixture(scope="module")
def extension(
    tmp_path_factory: pytest.TempPathFactory,
    run_program: Run,
    cuda_standin: Path,
    env: dict[str, str],
) -> Path:
    """Return the folder with the module of PyTorch's stand-in."""
    folder = tmp_path_factory.mktemp("cuda_device")
    command = [sys.executable, "-c", BUILD, FOLDER / "cuda_device.cpp", folder, cuda_standin]
    run_program(command, cwd=folder, env=env, limit=600).expect_success()
    return folder


@pytest.mark.parametrize(
    ("part", "links"),
    [
        ("native", "shm"),
        pytest.param("native", "tcp", marks=pytest.mark.slow),
        pytest.param("copies", "shm", marks=pytest.mark.slow),
        pytest.param("python", "shm", marks=pytest.mark.slow),
    ],
)
def test_operations(
    ddlrun: Run, extension: Path, env: dict[str, str], part: str, links: str
) -> None:
    size = 3
    env = {**env, "DDL_LINKS": links, "DDL_TORCH_NATIVE": "0" if part == "python" else "1"}
    ended = ddlrun(size, PROGRAM, str(extension), part, env=env, limit=120).expect_success()
    for rank in range(size):
        expected = 11 + size + (1 + size) * (rank == 0)
        assert ended.lines(rank) == [f"compared {expected}"]


def test_own_functions(ddlrun: Run, extension: Path, env: dict[str, str]) -> None:
    ended = ddlrun(2, OWN, str(extension), env=env, limit=120).expect_success()
    assert [ended.lines(rank) for rank in range(2)] == [["compared 22"]] * 2


@pytest.mark.slow
def test_an_elastic_job(run_here: Run, extension: Path, env: dict[str, str]) -> None:
    def run(workers: int, struck: int) -> Finished:
        # The device must exist before PyTorch is imported, with which the workers would otherwise
        # start.
        ddl = [sys.executable, "-m", "ddl_launch.commands", "elastic", "run", "--preload", "json"]
        program = [ELASTIC, extension, "cuda", str(struck)]
        ended = run_here([*ddl, "-n", str(workers), *program], env=env, limit=240)
        return ended.expect_success()

    alone, others = run(1, -1), run(2, 1)
    assert re.fullmatch(r"\[0\] state \w{64} cuda\n", alone.out)
    assert others.out == alone.out
    assert "died (SIGKILL); " in others.err
