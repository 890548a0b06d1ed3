# SPDX-License-Identifier: Apache-2.0
"""The README is short, and links in documents lead to files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.pure

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


def test_contributing_is_one_page() -> None:
    assert len((ROOT / "CONTRIBUTING.md").read_text().splitlines()) <= 60


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "elastic").glob("*.md")))
def test_page_is_short(page: Path) -> None:
    assert len(page.read_text().splitlines()) <= 250


def test_links() -> None:
    for document in [*DOCUMENTS, *(ROOT / "docs").rglob("*.md")]:
        if "generated" in document.parts:
            continue
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name}: {target}"
