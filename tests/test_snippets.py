"""The whole programs that README and tutorial show run as they stand, and print what is said."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def programs(page: str) -> list[str]:
    """The Python blocks that are whole programs of ddl_core: they import it and have no gaps."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    return [b for b in blocks if "import ddl_core\n" in b and "\n...\n" not in b]


def run(program: str, ranks: int, folder: Path) -> list[str]:
    (folder / "sums.py").write_text(program)
    ended = subprocess.run(
        [Path(sys.executable).parent / "ddlrun", "-n", str(ranks), "sums.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return sorted(ended.stdout.splitlines())


def test_readme(tmp_path: Path) -> None:
    (program,) = programs("README.md")
    assert len(run(program, 2, tmp_path)) == 2


@pytest.mark.parametrize("ranks", [1, 3])
def test_tutorial(ranks: int, tmp_path: Path) -> None:
    (program,) = programs("docs/tutorial.md")
    shown = re.findall(rf"\[?\d?\]? ?rank \d of {ranks} has \[.*?\]", tutorial())
    assert len(shown) == ranks
    printed = run(program, ranks, tmp_path)
    assert [line.split("rank", 1)[1] for line in printed] == [
        line.split("rank", 1)[1] for line in shown
    ]


def test_tutorials_failure_names_the_rank(tmp_path: Path) -> None:
    (program,) = programs("docs/tutorial.md")
    (line,) = re.findall(r"^    (assert .*)$", tutorial(), re.MULTILINE)
    with pytest.raises(AssertionError, match="ddlrun: rank 1 on .*does not like this"):
        run(program.replace("comm.allreduce(x)", f"{line}\ncomm.allreduce(x)"), 3, tmp_path)


def tutorial() -> str:
    return (ROOT / "docs" / "tutorial.md").read_text()
