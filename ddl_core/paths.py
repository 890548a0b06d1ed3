# SPDX-License-Identifier: Apache-2.0
"""Where the library and its header are. It does not load the library: an adapter whose native part
does so needs no more of ddl_core."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path


def get_include() -> str:
    """The folder of ddl/ddl.h, to compile against."""
    return str(_folder() / "include")


def library_path() -> str:
    """The shared library that this process uses. Link native code to this very file, so that the
    process has one libddl."""
    return str(library_folder() / "libddl.so.1")


def library_folder() -> Path:
    """The folder of the shared library, of pkgconfig/libddl.pc and of cmake/ddl."""
    return _folder() / "lib"


def header_version() -> str:
    """The version of ddl.h, as 'major.minor.patch'."""
    header = Path(get_include(), "ddl", "ddl.h").read_text()
    lines = header.split("#define DDL_VERSION_")[1:4]
    return ".".join(line.split(maxsplit=2)[1] for line in lines)


def missing(why: object) -> ImportError:
    """The error if the library was not built into this package."""
    return ImportError(
        f"{Path(__file__).parent} has no usable libddl ({why}). Install it with"
        " 'pip install .' in the project's folder."
    )


@functools.cache
def _folder() -> Path:
    spec = importlib.util.find_spec("ddl_core._ddl")
    if spec is None or spec.origin is None:
        raise missing("there is no module _ddl")
    return Path(spec.origin).parent
