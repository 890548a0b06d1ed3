# SPDX-License-Identifier: Apache-2.0
"""Writes the C source of a cffi module from a header, such as `ddl_core._ddl` from ddl.h.

    python _build.py [--cc CC] --module ddl_core._ddl --include ddl/ddl.h ddl.h _ddl.c

The declarations are the preprocessed text between the header's two marks (no comments, no DDL_API).
The C compiler checks them against the header when it compiles the result.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

from cffi import FFI

BEGIN = "/* ---- ddl: declarations"
END = "/* ---- ddl: end"


def declarations(header: str, cc: str) -> str:
    """Return the declarations from the text of a header, in the form that cffi accepts."""
    cut = header.split(BEGIN, 1)[1].split("*/", 1)[1].split(END, 1)[0]
    command = [cc, "-E", "-P", "-DDDL_API=", "-"]
    return subprocess.run(command, input=cut, text=True, stdout=subprocess.PIPE, check=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the C source of a cffi module.")
    parser.add_argument("--cc", default="cc", help="the C compiler, for its preprocessor")
    parser.add_argument("--module", required=True, help="the module's full name")
    parser.add_argument("--include", required=True, help="the header, as C includes it")
    parser.add_argument("header", type=Path, help="path of the header")
    parser.add_argument("output", type=Path, help="path of the C file to write")
    arguments = parser.parse_args()
    ffi = FFI()
    ffi.cdef(declarations(arguments.header.read_text(), arguments.cc))
    ffi.set_source(arguments.module, f'#include "{arguments.include}"')
    ffi.emit_c_code(str(arguments.output))


if __name__ == "__main__":
    main()
