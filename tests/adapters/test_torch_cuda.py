# SPDX-License-Identifier: Apache-2.0
"""Tensors of PyTorch on accelerators: libddl takes the memory of NVIDIA's as it is, and the others
pass through host memory. The GPU, and the device "cuda" in a build of PyTorch for CPUs, are
stand-ins."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import library_path

if TYPE_CHECKING:
    from conftest import Run

pytestmark = pytest.mark.usefixtures("torch_native")

FOLDER = Path(__file__).parent
PROGRAM = FOLDER / "programs" / "torch_cuda.py"

BUILD = """
import sys
from torch.utils.cpp_extension import load
source, folder, standin = sys.argv[1:]
load("cuda_device", [source], build_directory=folder, extra_cflags=["-O0"],
     extra_include_paths=["%s"], extra_ldflags=[f"-L{standin}", "-l:libcuda.so.1"])
""" % (FOLDER.parent / "cuda_standin")


@pytest.fixture(scope="module")
def env(cuda_standin: Path) -> dict[str, str]:
    """The environment of a process that has the stand-ins: PyTorch's is loaded before it."""
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
    """The folder with the module of PyTorch's stand-in."""
    folder = tmp_path_factory.mktemp("cuda_device")
    command = [sys.executable, "-c", BUILD, FOLDER / "cuda_device.cpp", folder, cuda_standin]
    run_program(command, cwd=folder, env=env, limit=600).expect_success()
    return folder


@pytest.mark.parametrize(
    ("part", "links"),
    [("native", "shm"), ("native", "tcp"), ("copies", "shm"), ("python", "shm")],
)
def test_operations(
    ddlrun: Run, extension: Path, env: dict[str, str], part: str, links: str
) -> None:
    size = 3
    env = {**env, "DDL_LINKS": links, "DDL_TORCH_NATIVE": "0" if part == "python" else "1"}
    if links == "tcp":  # else long tensors go from buffer to buffer
        env["DDL_GPU_SHARED_BYTES"] = "0"
    ended = ddlrun(size, PROGRAM, str(extension), part, env=env, limit=120).expect_success()
    for rank in range(size):
        expected = 11 + size + (1 + size) * (rank == 0)
        assert ended.lines(rank) == [f"compared {expected}"]
