# SPDX-License-Identifier: Apache-2.0
"""The sources run on the first patch releases of each Python that they support. Ruff and mypy know
what came with 3.11 or 3.12, but not what came with 3.11.4."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.pure

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (
    *("adapters", "bench", "ddl_core", "ddl_elastic", "ddl_launch", "ddl_scheduler", "docs"),
    "examples",
)
# Keywords by the name of the called function, and names. Debian 12 has Python 3.11.2.
KEYWORDS = {
    "extract": {"filter"},  # of tarfile: 3.10.12, 3.11.4
    "extractall": {"filter"},
    "unpack_archive": {"filter"},
    "getaddresses": {"strict"},  # of email.utils: 3.10.15, 3.11.10
    "parseaddr": {"strict"},
}
NAMES = {
    "data_filter",  # of tarfile
    "fully_trusted_filter",
    "tar_filter",
    "get_int_max_str_digits",  # of sys: 3.10.7
    "set_int_max_str_digits",
}


def newer(text: str) -> Iterator[str]:
    """Return the lines that use something newer."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if KEYWORDS.get(name, set()) & {each.arg for each in node.keywords}:
                yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Attribute) and node.attr in NAMES:
            yield f"{node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("folder", [*FOLDERS, "packaging", "tests"])
def test_sources_use_no_newer_patch_release(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    found = [
        f"{file.relative_to(ROOT)}:{line}" for file in files for line in newer(file.read_text())
    ]
    assert not found, "\n".join(found)


def test_newer_call_is_found() -> None:
    assert list(newer("a.extractall(b, filter='data')\nx = tarfile.data_filter")) == [
        "1: a.extractall(b, filter='data')",
        "2: tarfile.data_filter",
    ]
