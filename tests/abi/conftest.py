# SPDX-License-Identifier: Apache-2.0
"""What the tests of the ABI share: the library that users get."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def library() -> str:
    """The installed libddl.so.1: the one that every user of the package gets."""
    files = importlib.metadata.files("libddl") or []
    named = {Path(str(file.locate())).resolve() for file in files if "libddl.so" in file.name}
    found = {file for file in named if file.read_bytes()[:4] == b"\x7fELF"}  # no linker script
    assert len(found) == 1, f"the package holds {sorted(map(str, found)) or 'no libddl.so'}"
    return str(found.pop())
