# SPDX-License-Identifier: Apache-2.0
"""What the adapters' tests share."""

from __future__ import annotations

import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Finished, Run

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"


@pytest.fixture(scope="session")
def torch_native(run_program: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The native part of ddl_torch, built in the user's cache before the first test that needs it,
    so that no rank's time limit has to cover that."""
    command = [sys.executable, "-m", "ddl_torch", "build"]
    folder = tmp_path_factory.mktemp("build")
    return Path(run_program(command, cwd=folder, limit=600).expect_success().out.strip())


@pytest.fixture(scope="session")
def jax_native(run_program: Run, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The native parts of ddl_jax, built likewise."""
    command = [sys.executable, "-m", "ddl_jax", "build"]
    folder = tmp_path_factory.mktemp("build")
    out = run_program(command, cwd=folder, limit=600).expect_success().out
    return [Path(line) for line in out.splitlines()]


@pytest.fixture(scope="session")
def tensorflow_native(run_program: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of ddl_tensorflow."""
    command = [sys.executable, "-m", "ddl_tensorflow", "build"]
    folder = tmp_path_factory.mktemp("build")
    return Path(run_program(command, cwd=folder, limit=900).expect_success().out.strip())


@pytest.fixture
def unwatched(run_program: Run, tmp_path: Path):  # type: ignore[no-untyped-def]
    """`unwatched(size, text, limit=120)`: a program on `size` processes that nobody watches, so
    that each ends as it likes."""

    def run_ranks(size: int, text: str, limit: float = 120) -> list[Finished]:
        program = tmp_path / "program.py"
        program.write_text(text)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            url = f"tcp://127.0.0.1:{probe.getsockname()[1]}"

        def start(rank: int) -> Finished:
            env = {"DDL_RANK": str(rank), "DDL_SIZE": str(size), "DDL_RENDEZVOUS": url}
            command = [sys.executable, program]
            ended: Finished = run_program(command, cwd=tmp_path, env=env, limit=limit)
            return ended

        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(start, range(size)))

    return run_ranks


@pytest.fixture(scope="session")
def train_digits() -> Path:
    return EXAMPLES / "train_digits.py"
