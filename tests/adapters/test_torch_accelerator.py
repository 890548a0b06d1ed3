# SPDX-License-Identifier: Apache-2.0
"""Tensors on an accelerator pass through host memory. The accelerator is a stand-in: a device of
PyTorch whose memory the host cannot touch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Run

pytestmark = pytest.mark.usefixtures("torch_native")

FOLDER = Path(__file__).parent
PROGRAM = FOLDER / "programs" / "torch_accelerator.py"

BUILD = """
import sys
from torch.utils.cpp_extension import load
load("accelerator", [sys.argv[1]], build_directory=sys.argv[2], extra_cflags=["-O0"])
"""


@pytest.fixture(scope="module")
def extension(tmp_path_factory: pytest.TempPathFactory, run_program: Run) -> Path:
    """The folder with the stand-in's module."""
    folder = tmp_path_factory.mktemp("accelerator")
    command = [sys.executable, "-c", BUILD, FOLDER / "accelerator.cpp", folder]
    run_program(command, cwd=folder, limit=600).expect_success()
    return folder


@pytest.mark.parametrize("part", ["native", "python"])
def test_operations(ddlrun: Run, extension: Path, part: str) -> None:
    env = {"DDL_TORCH_NATIVE": "1" if part == "native" else "0"}
    size = 3
    ended = ddlrun(size, PROGRAM, str(extension), part, env=env, limit=120).expect_success()
    for rank in range(size):
        expected = 11 + size + (1 + size) * (rank == 0)
        assert ended.lines(rank) == [f"compared {expected}"]
