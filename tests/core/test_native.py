# SPDX-License-Identifier: Apache-2.0
"""The cache of the adapters' native parts."""

import signal
import sys
from pathlib import Path

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


def test_killed_build_leaves_nothing_in_the_cache(run_here: Run, tmp_path: Path) -> None:
    (tmp_path / "sources").mkdir()
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    env = {"DDL_CACHE": str(tmp_path / "cache")}
    for _ in range(2):
        ended = run_here([sys.executable, program, "die"], env=env)
        assert ended.code == -signal.SIGKILL
    ended = run_here([sys.executable, program, "live"], env=env).expect_success()
    made = Path(ended.out.strip())
    assert sorted(path.name for path in made.parent.iterdir()) == ["part.lock", "part.so"]


PREBUILT = """
import sys
from pathlib import Path
from ddl_core import native
from ddl_core.frameworks import native_recipe
from ddl_core.base import paths

here = Path(__file__).parent
sources = here / "sources"
digest = native_recipe.source_digest(sources, Path(paths.get_include(), "ddl", "ddl.h"))
part = here / "prebuilt" / f"x-1-abi-{digest[:12]}" / "part.so"
part.parent.mkdir(parents=True, exist_ok=True)
part.write_text(sys.argv[1])

def compile(file):
    file.write_text("compiled")

def load(file):
    if file.read_text() == "for another build":
        raise ImportError("unknown base type")
    return file.read_text()

parts = native.Part("ddl_x", "X 1", "x", sources, "part.so", [], compile, sys.argv[2])
print(parts.load(load))
"""


def test_prebuilt_part_is_used_if_it_fits(run_here: Run, tmp_path: Path) -> None:
    (tmp_path / "sources").mkdir()
    program = tmp_path / "program.py"
    program.write_text(PREBUILT)
    env = {"DDL_CACHE": str(tmp_path / "cache"), "CXX": "no-compiler"}

    def run(content: str, name: str) -> tuple[str, str]:
        command = [sys.executable, program, content, name]
        ended = run_here(command, env=env).expect_success()
        return ended.out.strip(), ended.err

    assert run("prebuilt", "x-1-abi") == ("prebuilt", "")
    assert not (tmp_path / "cache").exists()
    out, err = run("prebuilt", "x-2-abi")
    assert out == "compiled" and "because this installation has no prebuilt part" in err
    (tmp_path / "sources" / "new.c").touch()  # parts with other sources do not count
    out, err = run("for another build", "x-1-abi")
    assert out == "compiled" and "cannot load the prebuilt" in err and "unknown base type" in err
