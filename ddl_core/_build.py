"""Write the C source of the cffi module `ddl_core._ddl` from ddl.h itself.

    python _build.py [--cc CC] ddl.h _ddl.c

The declarations are those between the header's two marks, preprocessed (no comments, no DDL_API).
The C compiler, reading the header, checks every one of them when it compiles the result.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

from cffi import FFI

BEGIN = "/* ---- ddl: declarations"
END = "/* ---- ddl: end"


def declarations(header: str, cc: str) -> str:
    """The declarations in the text of ddl.h, as cffi reads them."""
    cut = header.split(BEGIN, 1)[1].split("*/", 1)[1].split(END, 1)[0]
    command = [cc, "-E", "-P", "-DDDL_API=", "-"]
    return subprocess.run(command, input=cut, text=True, stdout=subprocess.PIPE, check=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the C source of ddl_core._ddl.")
    parser.add_argument("--cc", default="cc", help="the C compiler, for its preprocessor")
    parser.add_argument("header", type=Path, help="path of ddl.h")
    parser.add_argument("output", type=Path, help="path of the C file to write")
    arguments = parser.parse_args()
    ffi = FFI()
    ffi.cdef(declarations(arguments.header.read_text(), arguments.cc))
    ffi.set_source("ddl_core._ddl", '#include "ddl/ddl.h"')
    ffi.emit_c_code(str(arguments.output))


if __name__ == "__main__":
    main()
