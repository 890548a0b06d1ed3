# SPDX-License-Identifier: Apache-2.0
"""The paths of the library and its header. This module does not load the library, because an
adapter whose native part loads it needs nothing else of ddl_core."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path


def get_include() -> str:
    """Return the include folder that contains ddl/ddl.h."""
    return str(_folder() / "include")


def library_path() -> str:
    """Return the path of the shared library that this process uses. Link native code to this file,
    so that the process has only one libddl."""
    return str(library_folder() / "libddl.so.1")


def library_folder() -> Path:
    """Return the folder of the shared library, of pkgconfig/libddl.pc and of cmake/ddl."""
    return _folder() / "lib"


def header_version() -> str:
    """Return the version of ddl.h, as 'major.minor.patch'."""
    header = Path(get_include(), "ddl", "ddl.h").read_text()
    lines = header.split("#define DDL_VERSION_")[1:4]
    return ".".join(line.split(maxsplit=2)[1] for line in lines)


def missing(why: object) -> ImportError:
    """Return the error for a package without a built library."""
    return ImportError(
        f"{Path(__file__).parents[1]} has no usable libddl ({why}). Install it with"
        " 'pip install .' in the project's folder."
    )


@functools.cache
def _folder() -> Path:
    spec = importlib.util.find_spec("ddl_core._ddl")
    if spec is None or spec.origin is None:
        raise missing("the module _ddl does not exist")
    return Path(spec.origin).parent
