# SPDX-License-Identifier: Apache-2.0
"""The program and its arguments on the command lines of `ddl elastic`."""

from __future__ import annotations

import argparse
from pathlib import Path

from ddl_launch.errors import CommandError


def add_program(parser: argparse.ArgumentParser) -> None:
    """Add the program and its arguments to a command's parser."""
    parser.add_argument("program", metavar="PROGRAM.py", type=Path)
    parser.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER, help="its arguments")


def check_program(arguments: argparse.Namespace) -> Path:
    """Return the program's file. Raises CommandError if it does not exist."""
    path: Path = arguments.program
    if not path.is_file():
        raise CommandError(f"{path}: there is no such program; give a file, as in: train.py --lr 1")
    return path
