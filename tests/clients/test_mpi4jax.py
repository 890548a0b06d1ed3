# SPDX-License-Identifier: Apache-2.0
"""One program prints the same with mpi4jax over Open MPI and with ddl_jax.mpi4jax, for which two
lines change. `make test-clients`."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from clients.libraries import Library, install
from conftest import clean_environment, run

if TYPE_CHECKING:
    from conftest import Run

PROGRAM = Path(__file__).parent / "mpi4jax_program.py"
RELEASE = "mpi4jax==0.9.1.post2"
BUILD = f"""
import subprocess, sys
pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
subprocess.run([*pip, "--no-deps", "--no-build-isolation", {RELEASE!r}], check=True)
"""  # in addition to this environment's jax and mpi4py
# Without the folder of a CUDA compiler, for which pip would build it, too.
ITSELF = Library(
    "mpi4jax",
    ("cython", "nanobind", "setuptools", "wheel"),
    (),
    env={"PATH": "/usr/bin:/bin"},
    prepare=BUILD,
)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_prints_the_same(ddlrun: Run, tmp_path: Path, size: int) -> None:
    if shutil.which("mpicc", path=ITSELF.env["PATH"]) is None:
        pytest.skip("there is no mpicc in /usr/bin (Debian: libopenmpi-dev openmpi-bin)")
    install(ITSELF)
    python = ITSELF.folder / "bin" / "python"
    script = f'exec "{python}" "{PROGRAM}" > "rank$OMPI_COMM_WORLD_RANK"'
    options = ["--allow-run-as-root", "--oversubscribe", "-n", str(size)]
    command = ["/usr/bin/mpirun", *options, "sh", "-c", script]
    run(command, cwd=tmp_path, env=clean_environment(ITSELF.env), limit=180).expect_success()

    text = PROGRAM.read_text()
    for theirs, own in (
        ("from mpi4py import MPI", "from ddl_jax.mpi4jax import MPI"),
        ("import mpi4jax", "import ddl_jax.mpi4jax as mpi4jax"),
    ):
        text, changed = re.subn(rf"^{theirs}$", own, text, flags=re.MULTILINE)
        assert changed == 1
    ours = ddlrun(size, text, limit=180).expect_success()
    for rank in range(size):
        assert ours.lines(rank) == (tmp_path / f"rank{rank}").read_text().splitlines()
