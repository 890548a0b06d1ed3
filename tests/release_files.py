# SPDX-License-Identifier: Apache-2.0
"""The files of a release, as `make wheels` has left them in dist/, and functions for their
tests."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
EXAMPLES = ROOT / "libddl" / "examples"
NATIVE = platform.machine()

# Known sums of many types and sizes.
PROGRAM = """\
import numpy as np, platform, ddl_core
comm = ddl_core.init()
for dtype in ("float32", "float16", "float64", "int32"):
    for count in (1, 1000, 300_000):
        x = (np.arange(count) % 100 + comm.rank).astype(dtype)
        wanted = sum((np.arange(count) % 100 + rank).astype(dtype) for rank in range(comm.size))
        assert (comm.allreduce(x) == wanted).all(), (dtype, count)
print(platform.machine(), comm.rank, comm.size, ddl_core.version(), flush=True)
comm.close()
"""


def only(pattern: str) -> Path:
    """Return the only file of a release that matches."""
    found = sorted(DIST.glob(pattern))
    assert len(found) == 1, f"make wheels leaves one {pattern} in dist/, not {found}"
    return found[0]


def environment(**variables: str) -> dict[str, str]:
    """Return a user's environment, in which nothing points to the sources or to another
    installation."""
    names = ("LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV")
    return {k: v for k, v in os.environ.items() if k not in names} | variables


def run(*command: str | Path, timeout: float = 300, **variables: str) -> str:
    """Return the output of a command in an `environment`."""
    words = [str(word) for word in command]
    env = environment(**variables)
    ended = subprocess.run(words, capture_output=True, text=True, env=env, timeout=timeout, cwd="/")
    assert ended.returncode == 0, f"{words}\n{ended.stdout}{ended.stderr}"
    return ended.stdout


def install(folder: Path, file: Path) -> Path:
    """Create a clean environment with this wheel or sdist; return its folder of programs."""
    run(sys.executable, "-m", "venv", folder)
    run(folder / "bin" / "pip", "install", "-q", file, timeout=600)
    return folder / "bin"


def check_two_ranks(installed: Path, folder: Path) -> None:
    """Let two ranks compute a sum, over shared memory and over TCP."""
    file = folder / "program.py"
    file.write_text(PROGRAM)
    for links in ("shm", "tcp"):
        said = run(installed / "ddlrun", "-n", "2", "--no-prefix", file, DDL_LINKS=links)
        assert sorted(line.split()[1:3] for line in said.splitlines()) == [["0", "2"], ["1", "2"]]
