# SPDX-License-Identifier: Apache-2.0
"""soak.py and soak_changes.py for a few seconds each; `make soak-elastic` runs them longer."""

import sys
from pathlib import Path
from typing import Any

import pytest

LIMIT = 240  # seconds, on a busy machine


def run(run_program: Any, folder: Path, name: str, seconds: int) -> str:
    command = [sys.executable, Path(__file__).parent / name, "--seconds", str(seconds)]
    return str(run_program(command, cwd=folder, limit=LIMIT).expect_success().out)


@pytest.mark.slow
def test_short_jobs(run_program: Any, tmp_path: Path) -> None:
    assert " jobs, one hash; " in run(run_program, tmp_path, "soak.py", 5)


@pytest.mark.slow
def test_one_that_changes(run_program: Any, tmp_path: Path) -> None:
    assert " steps, one hash; " in run(run_program, tmp_path, "soak_changes.py", 8)
