# SPDX-License-Identifier: Apache-2.0
"""Write the page of the commands: the output of `ddlrun --help`, `ddl --help` and so on."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from ddl_launch import arguments
from ddl_launch.commands import cli

WIDTH = "100"  # columns


def commands(parser: argparse.ArgumentParser, prog: str) -> Iterator[tuple[str, str]]:
    """Yield the command and its subcommands, each with its help."""
    parser.prog = prog
    yield prog, parser.format_help()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for listed in action._choices_actions:  # without the hidden ones
                yield from commands(action.choices[listed.dest], f"{prog} {listed.dest}")


def write(folder: Path) -> None:
    """Write FOLDER/commands.md."""
    out = ["# Commands", "", "Each command prints its part of this page with `--help`.", ""]
    with mock.patch.dict(os.environ, COLUMNS=WIDTH):
        for parser, prog in ((arguments.make_parser(), "ddlrun"), (cli.make_parser(), "ddl")):
            for name, text in commands(parser, prog):
                out += [f"## {name}", "", "```text", text.rstrip(), "```", ""]
    text = "\n".join(out)
    path = folder / "commands.md"
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
