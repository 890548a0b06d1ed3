# SPDX-License-Identifier: Apache-2.0
"""The wheel's library, as programs in other languages load it: here with ctypes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import ddl_core

FOLDER = Path(ddl_core.__file__).parent / "lib"

LOAD = """
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
endpoint = ctypes.c_void_p()
assert lib.ddl_endpoint_create(None, ctypes.byref(endpoint)) == 0
"""

ONE = """
import ddl_core
import numpy as np
comm = ddl_core.init()
assert comm.allreduce(np.ones(3)).sum() == 3
mapped = {line.split()[-1] for line in open("/proc/self/maps") if "libddl.so.1" in line}
assert len(mapped) == 1, mapped
first = ctypes.cast(lib.ddl_version, ctypes.c_void_p).value
second = ctypes.cast(ctypes.CDLL(sys.argv[2]).ddl_version, ctypes.c_void_p).value
assert first == second
"""
UNLOAD = """
import _ctypes, os
destroy = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(("ddl_endpoint_destroy", lib))
_ctypes.dlclose(lib._handle)
ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOLOAD)  # its thread still runs there
destroy(endpoint)
"""


def run(program: str, name: str) -> None:
    arguments = [FOLDER / name, FOLDER / "libddl.so.1"]
    done = subprocess.run(
        [sys.executable, "-c", LOAD + program, *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["libddl.so", "libddl.so.1"])
def test_library_loaded_by_file_name_is_that_of_ddl_core(name: str) -> None:
    run(ONE, name)


@pytest.mark.parametrize("name", ["libddl.so", "libddl.so.1"])
def test_library_unloaded_with_a_live_endpoint_stays(name: str) -> None:
    run(UNLOAD, name)


def test_page_lists_files_of_the_wheel() -> None:
    """docs/wheel.md names each file for programs in other languages."""
    page = (Path(__file__).parents[2] / "docs" / "wheel.md").read_text()
    package = FOLDER.parent
    files = [p for folder in ("include", "lib") for p in (package / folder).rglob("*.*")]
    missing = [str(p) for p in files if p.is_file() and p.name not in page]
    assert files and not missing
    for name in re.findall(r"^\| `((?:include|lib)/[^`]+)` \|", page, re.MULTILINE):
        assert (package / name).is_file(), name
