"""python -m ddl_jax build | info | run PROGRAM [ARGUMENTS]"""

from __future__ import annotations

import argparse
import runpy
import sys
from functools import partial
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ddl_jax", description="The JAX adapter of libddl."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="compile the native parts now, and print their files")
    commands.add_parser("info", help="print versions, and where the native parts lie")
    run = commands.add_parser(
        "run", help="run a Python program of jax's own collectives, after ddl_jax.initialize()"
    )
    run.add_argument("program")
    run.add_argument("arguments", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if arguments.command == "run":
        import ddl_jax

        ddl_jax.initialize()
        sys.argv = [arguments.program, *arguments.arguments]
        sys.path[0] = str(Path(arguments.program).resolve().parent)
        runpy.run_path(arguments.program, run_name="__main__")
        return 0

    import jax
    import jaxlib

    from ddl_core import native
    from ddl_jax import _build

    framework = f"JAX {jax.__version__}, jaxlib {jaxlib.__version__}"
    parts = [(_build.path(part), partial(_build.build, part)) for part in _build.PARTS]
    return native.answer(arguments.command, "ddl_jax", framework, parts)


if __name__ == "__main__":
    sys.exit(main())
