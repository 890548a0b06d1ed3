# SPDX-License-Identifier: Apache-2.0
"""Fixtures for the tests of a release's files."""

from __future__ import annotations

from pathlib import Path

import pytest
from release_files import NATIVE, install, only


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a clean environment with the native wheel."""
    return install(tmp_path_factory.mktemp("clean"), only(f"libddl-*_{NATIVE}.whl"))
