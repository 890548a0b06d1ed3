# SPDX-License-Identifier: Apache-2.0
"""`mypy --strict` passes on a user's program for each adapter, and finds what is wrong in it: an
`ignore` that ignores nothing is an error of the strict mode."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import adapter_list
import pytest

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = sorted((ROOT / "tests" / "typing").glob("*.py"))
SMALL = """\
from typing import Any
import {0}

def of_any(array: Any) -> None:
    {0}.allreduce(array, op="max")
    {0}.allreduce(array, op="maximum")  # type: ignore[arg-type]
    {0}.allreduces(array)  # type: ignore[attr-defined]
    rank: int = {0}.rank() + {0}.size()
    assert rank
"""
# These have no types of their own, or are not installed.
SETTINGS = """\
[mypy]
strict = True
[mypy-keras.*,tensorflow.*]
ignore_missing_imports = True
follow_imports = skip
"""


def test_users_programs(tmp_path: Path) -> None:
    settings = tmp_path / "mypy.ini"
    settings.write_text(SETTINGS)
    small = [tmp_path / f"of_{adapter.name}.py" for adapter in adapter_list.SMALL]
    for adapter, program in zip(adapter_list.SMALL, small, strict=True):
        program.write_text(SMALL.format(adapter.package))
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--config-file", settings),
            *("--cache-dir", ROOT / ".mypy_cache" / "users", *PROGRAMS, *small),
        ],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("package", sorted(p.parent.name for p in ROOT.glob("*/ddl_*/__init__.py")))
def test_types_are_shipped(package: str) -> None:
    assert (ROOT / "adapters" / package / "py.typed").exists()
