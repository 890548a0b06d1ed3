# SPDX-License-Identifier: Apache-2.0
"""Programs in each language with the installed wheel, and without the sources of the library: the
examples, and the blocks of docs/installing.md as they stand. `make test-wheels` runs this."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from release_files import EXAMPLES, environment, run
from snippets import Block, blocks

pytestmark = pytest.mark.slow
LANGUAGES = ("c", "cpp", "fortran", "rust", "cargo", "go", "lua", "mpi", "cmake")
# The compiler that a block of the page calls, and its further needs. Other tests run other blocks.
NEEDED: dict[str, tuple[str, ...]] = {
    "cc": (),
    "cmake": (),
    "gfortran": (),
    "rustc": (),
    "go": ("pkg-config",),
}


def tool(block: Block) -> str:
    return next((name for name in NEEDED if re.search(rf"^{name} ", block.text, re.M)), "")


BLOCKS = [block for block in blocks("docs/installing.md") if tool(block)]


@pytest.fixture
def package(installed: Path) -> Path:
    """The folder of ddl_core in the clean environment."""
    program = "import ddl_core; print(ddl_core.__path__[0])"
    return Path(run(installed / "python", "-c", program).strip())


@pytest.mark.parametrize("language", LANGUAGES)
def test_example(language: str, package: Path, tmp_path: Path) -> None:
    """Build with pkg-config or CMake, and run on two ranks."""
    check = ["sh", str(EXAMPLES / "check.sh"), language, str(package), str(tmp_path / "build")]
    ended = subprocess.run(
        check, capture_output=True, text=True, env=environment(), timeout=300, cwd="/"
    )
    if ended.returncode == 77:  # CTest's code for it, too
        pytest.skip(ended.stdout.strip())
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("language", ["c", "fortran", "rust"])
def test_by_flags(language: str, installed: Path, package: Path, tmp_path: Path) -> None:
    """Go calls pkg-config for its sources."""
    sources = EXAMPLES / language
    compiler = {"c": "cc", "fortran": "gfortran", "rust": "rustc"}[language]
    if not shutil.which(compiler):
        pytest.skip(f"there is no {compiler} here")
    libs = run(installed / "python", "-m", "ddl_core", "--libs").strip()
    program = tmp_path / "allreduce"
    if language == "fortran":
        files = [sources / "ddl.f90", sources / "allreduce.f90"]
        run(compiler, "-J", tmp_path, *files, *libs.split(), "-o", program)
    elif language == "rust":
        options = ["--edition", "2021", "-C", f"link-args={libs}"]
        run(compiler, *options, sources / "allreduce.rs", "-o", program)
    else:
        flags = run(installed / "python", "-m", "ddl_core", "--cflags").split()
        run(compiler, sources / "allreduce.c", *flags, *libs.split(), "-o", program)
    (library,) = re.findall(r"libddl\.so\.1 => (\S+)", run("ldd", program))
    assert Path(library).samefile(package / "lib" / "libddl.so.1")
    said = run(installed / "ddlrun", "-n", "2", "--no-prefix", program)
    assert sorted(said.splitlines()) == [
        f"rank {rank} of 2: every sum is 3, rank 0 says 42, right" for rank in (0, 1)
    ]


@pytest.mark.parametrize("block", [pytest.param(block, id=block.name) for block in BLOCKS])
def test_page(block: Block, installed: Path, tmp_path: Path) -> None:
    """A block compiles `allreduce` from sources in its folder."""
    compiler = tool(block)
    for name in (compiler, *NEEDED[compiler]):
        if not shutil.which(name):
            pytest.skip(f"there is no {name} here")
    language = {"cc": "c", "gfortran": "fortran", "rustc": "rust"}.get(compiler, compiler)
    folder = shutil.copytree(EXAMPLES, tmp_path / "examples") / language
    env = environment(PATH=f"{installed}:{environment()['PATH']}")
    ended = subprocess.run(
        ["bash", "-euc", block.text],
        capture_output=True,
        text=True,
        env=env,
        cwd=folder,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (program,) = folder.rglob("allreduce")
    said = run(installed / "ddlrun", "-n", "2", "--no-prefix", program)
    assert said.count("every sum is 3, rank 0 says 42, right") == 2
