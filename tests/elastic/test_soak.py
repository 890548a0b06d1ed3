"""A few seconds of soak.py, which is a target of its own: `make soak-elastic`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

LIMIT = 240  # seconds, on a busy machine


def test_sample(run_program: Any, tmp_path: Path) -> None:
    command = [sys.executable, Path(__file__).parent / "soak.py", "--seconds", "5"]
    done = run_program(command, cwd=tmp_path, limit=LIMIT)
    assert " jobs, one hash; " in done.expect_success().out
