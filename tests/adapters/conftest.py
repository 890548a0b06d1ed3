# SPDX-License-Identifier: Apache-2.0
"""Fixtures for the tests of the adapters."""

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import Finished, Run

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"


@pytest.fixture(scope="session")
def native_part(
    run_program: Run, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], list[Path]]:
    """Build the native parts of an adapter in the user's cache before the first test that needs
    them, so that no rank's time limit includes the build. The workers of pytest share the result,
    because each check imports a framework, which takes seconds."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def build(adapter: str) -> list[Path]:
        told = shared / f"{adapter}.built"
        if not told.exists():
            command = [sys.executable, "-m", adapter, "build"]
            out = run_program(command, cwd=own, limit=900).expect_success().out
            written = own / told.name
            written.write_text(out)
            written.replace(told)
        return [Path(line) for line in told.read_text().splitlines()]

    return build


@pytest.fixture(scope="session")
def torch_native(native_part: Callable[[str], list[Path]]) -> Path:
    return native_part("ddl_torch")[0]


@pytest.fixture(scope="session")
def jax_native(native_part: Callable[[str], list[Path]]) -> list[Path]:
    return native_part("ddl_jax")


@pytest.fixture(scope="session")
def tensorflow_native(native_part: Callable[[str], list[Path]]) -> Path:
    return native_part("ddl_tensorflow")[0]


@pytest.fixture
def unwatched(run_program: Run, tmp_path: Path, find_port: Callable[[], int]):  # type: ignore[no-untyped-def]
    """`unwatched(size, text, limit=120, torchrun=False)`: a program on `size` processes that nobody
    watches, so that each ends as it likes. torchrun: with the variables of torchrun, not ddlrun."""

    def run_ranks(
        size: int, text: str, limit: float = 120, torchrun: bool = False
    ) -> list[Finished]:
        program = tmp_path / "program.py"
        program.write_text(text)
        port = str(find_port())
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
        if not torchrun:
            shared = {"DDL_RENDEZVOUS": f"tcp://127.0.0.1:{port}"}
        names = ("RANK", "WORLD_SIZE") if torchrun else ("DDL_RANK", "DDL_SIZE")

        def start(rank: int) -> Finished:
            env = {**shared, names[0]: str(rank), names[1]: str(size)}
            command = [sys.executable, program]
            ended: Finished = run_program(command, cwd=tmp_path, env=env, limit=limit)
            return ended

        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(start, range(size)))

    return run_ranks


@pytest.fixture(scope="session")
def train_digits() -> Path:
    return EXAMPLES / "train_digits.py"
