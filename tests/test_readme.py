"""What the README shows is what the tree holds."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]


def test_c_program() -> None:
    (shown,) = re.findall(r"```c\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    program = (ROOT / "libddl" / "examples" / "c" / "allreduce.c").read_text()
    assert program.endswith(shown)


def test_links() -> None:
    for document in [*DOCUMENTS, *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name}: {target}"
