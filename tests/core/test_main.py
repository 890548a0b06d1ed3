# SPDX-License-Identifier: Apache-2.0
"""`python -m ddl_core` prints what is installed, without importing a framework."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ddl_core


def test_one_line_each() -> None:
    program = (
        "import runpy, sys\n"
        "for name in ('torch', 'jax', 'tensorflow', 'keras'): sys.modules[name] = None\n"
        "runpy.run_module('ddl_core', run_name='__main__')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, cwd="/"
    )
    assert ended.returncode == 0, ended.stderr
    lines = dict(line.split(maxsplit=1) for line in ended.stdout.splitlines())
    assert lines["libddl"].split() == [ddl_core.version(), ddl_core.library_path()]
    assert {"PyTorch", "TensorFlow", "Keras", "JAX", "mpi4py", "compiler", "cache"} <= set(lines)


@pytest.mark.parametrize(
    ("adapter", "module", "name"),
    [
        ("ddl_torch", "torch", "PyTorch"),
        ("ddl_tensorflow", "tensorflow", "TensorFlow"),
        ("ddl_jax", "jax", "JAX"),
    ],
)
def test_info_without_the_framework(adapter: str, module: str, name: str, tmp_path: Path) -> None:
    """An interpreter that can import only libddl and its requirements: -S excludes other
    packages."""
    for package in ("ddl_core", adapter, "cffi", "numpy"):
        spec = importlib.util.find_spec(package)
        assert spec and spec.origin
        (tmp_path / package).symlink_to(Path(spec.origin).parent)
    ended = subprocess.run(
        [sys.executable, "-S", "-m", adapter, "info"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        cwd="/",
    )
    assert ended.returncode == 1
    line = f"{adapter}: {name} is not installed: pip install 'libddl[{module}]'\n"
    assert (ended.stdout, ended.stderr) == ("", line)


def test_import_without_the_framework() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "try: import ddl_torch\n"
        "except ModuleNotFoundError as error: print(error.name, error)\n"
    )
    command = [sys.executable, "-c", program]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd="/").stdout
    assert said.startswith("torch ddl_torch: PyTorch is not installed"), said
