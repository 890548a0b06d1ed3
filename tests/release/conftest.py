# SPDX-License-Identifier: Apache-2.0
"""Fixtures for the tests of a release's files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from release_files import NATIVE, ROOT, install, only, run


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a clean environment with the native wheel."""
    return install(tmp_path_factory.mktemp("clean"), only(f"libddl-*_{NATIVE}.whl"))


@pytest.fixture(scope="session")
def debian() -> Path:
    """The root folder of the oldest Debian whose own Python is new enough, with only Python and a
    compiler."""
    if not shutil.which("debootstrap") or os.geteuid():
        pytest.skip("needs root and debootstrap")
    root = ROOT / "build" / "wheels" / "bookworm"
    if not (root / "ready").exists():
        wanted = "python3,python3-venv,gcc,libc6-dev,pkg-config"
        command = ["debootstrap", "--variant=minbase", f"--include={wanted}", "bookworm", root]
        run(*command, timeout=900)
        (root / "ready").touch()
    return root
