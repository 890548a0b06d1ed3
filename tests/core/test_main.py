"""`python -m ddl_core` says what is there, without importing a framework."""

from __future__ import annotations

import subprocess
import sys

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
