# SPDX-License-Identifier: Apache-2.0
"""Two builds of the same sources, in two folders, have the same bytes."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = (".*", "bench", "build", "dist", "docs", "tests", "__pycache__")


def build_wheel(folder: Path) -> Path:
    """Copy the sources to `folder`, and let pip build them there."""
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*LEFT_OUT))
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    ended = subprocess.run(
        [*command, "-w", folder / "out", "."],
        cwd=folder,
        env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (wheel,) = (folder / "out").glob("*.whl")
    return wheel


@pytest.mark.slow
def test_two_builds_have_the_same_bytes(tmp_path: Path) -> None:
    wheels = [build_wheel(tmp_path / name) for name in ("one", "another_folder")]
    contents = []
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if ".so" in name]
            contents.append({n: hashlib.sha256(archive.read(n)).hexdigest() for n in names})
    assert contents[0] == contents[1]
    assert len(contents[0]) >= 4
    assert wheels[0].read_bytes() == wheels[1].read_bytes()
