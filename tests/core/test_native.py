# SPDX-License-Identifier: Apache-2.0
"""The cache of the adapters' native parts."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Run

PROGRAM = """
import os, signal, sys
from pathlib import Path
from ddl_core import native

def compile(file):
    file.write_text("a part")
    if sys.argv[1] == "die":
        os.kill(os.getpid(), signal.SIGKILL)

sources = Path(__file__).parent / "sources"
print(native.Part("ddl_x", "X 1", "x", sources, "part.so", [], compile).build())
"""


def test_killed_build_leaves_nothing_in_the_cache(run_program: Run, tmp_path: Path) -> None:
    (tmp_path / "sources").mkdir()
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    env = {"DDL_CACHE": str(tmp_path / "cache")}
    for _ in range(2):
        ended = run_program([sys.executable, program, "die"], cwd=tmp_path, env=env)
        assert ended.code == -signal.SIGKILL
    ended = run_program([sys.executable, program, "live"], cwd=tmp_path, env=env).expect_success()
    made = Path(ended.out.strip())
    assert sorted(path.name for path in made.parent.iterdir()) == ["part.lock", "part.so"]
