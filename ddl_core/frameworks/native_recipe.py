# SPDX-License-Identifier: Apache-2.0
"""The common parts of compiling a native part at run time and for a wheel.

This module imports nothing of ddl_core, because packaging/torch_parts.py runs it without a built
library.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

PREBUILT = "prebuilt"  # the folder of an adapter's prebuilt parts
COMPILE_FLAGS = ("-O2", "-fPIC", "-fvisibility=hidden", "-pthread")
JAX_FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-shared", *COMPILE_FLAGS)


def source_digest(sources: Path, header: Path) -> str:
    """Return the digest of all files in the folder `sources`, and of ddl.h."""
    digest = hashlib.sha256()
    for source in [*(Path(sources, name) for name in sorted(os.listdir(sources))), header]:
        digest.update(source.read_bytes())
    return digest.hexdigest()


def xla_interface(include: Path) -> str:
    """Return the name and version of XLA's C interface for handlers, from its header. All jaxlibs
    with one version of it run the same handlers."""
    header = (include / "xla" / "ffi" / "api" / "c_api.h").read_text()
    numbers = (
        re.search(rf"define XLA_FFI_API_{each} (\d+)", header) for each in ("MAJOR", "MINOR")
    )
    return "xla-ffi-" + ".".join(number[1] if number else "unknown" for number in numbers)


def one_unit(file: Path, sources: Iterable[Path]) -> Path:
    """Write a translation unit that includes several sources, since a framework's headers take much
    longer to compile than these."""
    file.write_text("".join(f'#include "{source}"\n' for source in sources))
    return file
