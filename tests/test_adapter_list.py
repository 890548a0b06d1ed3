# SPDX-License-Identifier: Apache-2.0
"""A small adapter is named only in its own folder and files, and its tables are up to date."""

from __future__ import annotations

import re
import subprocess

import adapter_list
import pytest

# Texts for readers, which may name all adapters.
TEXTS = {
    *("CHANGELOG.md", "docs/dev/adding_an_adapter.md", "docs/heritage.md", "examples/README.md"),
    *("tests/test_reference.py", "tests/typing/heritage.py"),
}


def test_tables_are_current() -> None:
    """If the test fails, `python tests/adapter_list.py` writes the tables."""
    page = adapter_list.PAGE.read_text()
    assert page == adapter_list.with_tables(page)


@pytest.mark.parametrize("adapter", adapter_list.SMALL, ids=lambda adapter: adapter.name)
def test_no_other_list_names_the_adapter(adapter: adapter_list.Adapter) -> None:
    listed = subprocess.run(
        ["git", "-C", str(adapter_list.ROOT), "grep", "-l", adapter.package],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    own = re.compile(
        rf"adapters/{adapter.package}/.*|examples/{adapter.name}_digits\.py|tests/adapters/"
        rf"(programs/{adapter.name}_\w+|{adapter.name}_stand_in|test_{adapter.name})\.py"
    )
    assert [file for file in listed if not own.fullmatch(file) and file not in TEXTS] == []
