# SPDX-License-Identifier: Apache-2.0
"""A shell completes the options and commands of ddlrun and ddl, and their man pages can be
created."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent


def completions(line: str, file: Path) -> set[str]:
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(file),
        "_ARGCOMPLETE_IFS": "\n",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    program = BIN / line.split()[0]
    ended = subprocess.run([program], env=os.environ | asked, capture_output=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return {word.strip() for word in file.read_text().split("\n")}


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("ddlrun --dry", {"--dry-run"}),
        ("ddlrun --bind n", {"none", "numa"}),
        ("ddlrun -host", {"-host", "-hostfile"}),
        ("ddl pl", {"plan"}),
        ("ddl simulate --mo", {"--model"}),
        ("ddl lab ", {"up", "down", "exec"}),
    ],
)
def test_completion(line: str, wanted: set[str], tmp_path: Path) -> None:
    assert wanted <= completions(line, tmp_path / "answer")


@pytest.mark.parametrize(
    ("program", "module"), [("ddlrun", "ddl_launch.arguments"), ("ddl", "ddl_launch.commands.cli")]
)
def test_man_page(program: str, module: str, tmp_path: Path) -> None:
    page = tmp_path / f"{program}.1"
    made = [BIN / "argparse-manpage", "--module", module, "--function", "make_parser"]
    subprocess.run([*made, "--prog", program, "--output", page], check=True, cwd="/", timeout=120)
    text = page.read_text()
    assert text.startswith(".TH") and ".SH SYNOPSIS" in text
    assert ("dry" if program == "ddlrun" else "simulate") in text
