# SPDX-License-Identifier: Apache-2.0
"""The command `python -m ddl_jax build | info | run PROGRAM [ARGUMENTS]`."""

from __future__ import annotations

import argparse
import logging
import runpy
import sys
from pathlib import Path
from typing import Any

from ddl_core import native
from ddl_core.frameworks.requirement import require


def main() -> int:
    try:
        require("ddl_jax", "jax", "JAX")
    except ModuleNotFoundError as error:
        sys.exit(str(error))
    parser, commands = native.parser("ddl_jax", "JAX")
    run = commands.add_parser(
        "run", help="run a Python program of jax's own collectives, after ddl_jax.initialize()"
    )
    run.add_argument("program")
    run.add_argument("arguments", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if arguments.command == "run":
        import ddl_jax

        ddl_jax.initialize()
        _ignore_initialize()
        sys.argv = [arguments.program, *arguments.arguments]
        sys.path[0] = str(Path(arguments.program).resolve().parent)
        runpy.run_path(arguments.program, run_name="__main__")
        return 0

    from ddl_jax import _build

    return native.answer(arguments.command, [_build.part(name) for name in _build.PARTS])


def _ignore_initialize() -> None:
    """Make the program's call of jax.distributed.initialize do nothing, because the job has a
    coordinator already."""
    import jax

    def initialize(*arguments: Any, **options: Any) -> None:
        logging.getLogger("ddl_jax").info("the program's jax.distributed.initialize is ignored")

    jax.distributed.initialize = initialize


if __name__ == "__main__":
    sys.exit(main())
