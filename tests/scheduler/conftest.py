# SPDX-License-Identifier: Apache-2.0
"""Fixtures for the tests of the scheduler: its policy alone, and its service with real
processes."""

import sys
from pathlib import Path
from typing import Any

import properties  # noqa: F401
import pytest

sys.path.insert(0, str(Path(__file__).parent / "programs"))
sys.path.append(str(Path(__file__).parent))  # after the tests' folder, which has another conftest


@pytest.fixture(scope="module")
def alone(run_program: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    from serving import DDL, PROGRAM, STEPS

    command = [*DDL, "elastic", "run", "-n", "1", "--quiet", PROGRAM, *STEPS]
    done = run_program(command, cwd=tmp_path_factory.mktemp("alone"), limit=240).expect_success()
    return str(done.out.split("state ")[1].strip())
