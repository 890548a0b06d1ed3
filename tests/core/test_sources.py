# SPDX-License-Identifier: Apache-2.0
"""In the project's folder, imports find the installed packages and not the sources there."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROGRAMS = {
    "ddl_core": "import ddl_core; print(ddl_core.init().size)",
    "ddl_launch": "import ddl_launch.commands.planning, ddl_launch._plans; print(1)",
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_import_in_the_projects_folder(program: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert (ended.returncode, ended.stdout) == (0, "1\n"), ended.stderr


def test_no_ignored_file_is_tracked() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("the sources are not a clone")
    command = ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ended.stdout == ""


def test_check_in_the_projects_folder() -> None:
    ended = subprocess.run(
        [Path(sys.executable).parent / "ddlrun", "-n", "2", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr


def test_sources_without_an_installed_package_name_the_remedy() -> None:
    """-S excludes site-packages."""
    ended = subprocess.run(
        [sys.executable, "-S", "-c", "import ddl_core; ddl_core.library_path()"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 1
    assert "Install it with 'pip install .'" in ended.stderr, ended.stderr
