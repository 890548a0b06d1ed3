# SPDX-License-Identifier: Apache-2.0
"""Fixtures for the tests of the ABI: the installed library."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def library() -> str:
    """The installed libddl.so.1, as users of the package get it."""
    files = importlib.metadata.files("libddl") or []
    found = {Path(str(file.locate())).resolve() for file in files if file.name == "libddl.so.1"}
    assert len(found) == 1, f"the package holds {sorted(map(str, found)) or 'no libddl.so.1'}"
    return str(found.pop())
