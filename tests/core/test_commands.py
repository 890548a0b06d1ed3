# SPDX-License-Identifier: Apache-2.0
"""The command line of `ddl`: commands of other packages, suggestions, examples in the help."""

import argparse
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Run

from ddl_launch import arguments
from ddl_launch.commands.cli import make_parser

DDL = [sys.executable, "-m", "ddl_launch.commands"]
GREET = """
from ddl_launch.errors import CommandError

def add_greet(add):
    greet = add("greet", help="say hello", allow_abbrev=False)
    greet.add_argument("name")
    greet.set_defaults(run=run)

def run(arguments):
    if arguments.name == "nobody":
        raise CommandError("there is nobody to greet")
    print("hello", arguments.name)
    return 3
"""


def install(folder: Path, name: str, entry_point: str, source: str) -> dict[str, str]:
    """Install a distribution with one module and one command of ddl; return the environment in
    which it is found."""
    (folder / f"{name}.py").write_text(source)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[ddl.commands]\n{entry_point}\n")
    return {"PYTHONPATH": str(folder)}


@pytest.mark.parametrize(
    ("arguments", "code", "out", "err"),
    [
        (["greet", "you"], 3, "hello you\n", ""),
        (["greet", "nobody"], 2, "", "ddl: there is nobody to greet\n"),
        (["greet"], 2, "", "ddl: the following arguments are required: name (see ddl greet --help"),
    ],
)
def test_command_of_another_package(
    run_here: Run, tmp_path: Path, arguments: list[str], code: int, out: str, err: str
) -> None:
    env = install(tmp_path, "greeting", "greet = greeting:add_greet", GREET)
    ended = run_here([*DDL, *arguments], env=env)
    assert (ended.code, ended.out) == (code, out)
    assert ended.err.startswith(err) and bool(ended.err) == bool(err)


def test_help_lists_commands_of_other_packages(run_here: Run, tmp_path: Path) -> None:
    env = install(tmp_path, "greeting", "greet = greeting:add_greet", GREET)
    ended = run_here([*DDL, "--help"], env=env).expect_success()
    assert "other commands:\n  greet       say hello\n" in ended.out


def test_help_fits_one_screen_without_former_names(run_here: Run) -> None:
    env = {"COLUMNS": "80"}
    shown = run_here([*DDL, "--help"], env=env).expect_success().out.splitlines()
    assert len(shown) <= 24 and max(map(len, shown)) <= 80
    assert "other commands:" not in shown  # each of libddl's commands is in a group
    listed = {line.split()[0] for line in shown if line.startswith("  ")}
    assert {"plan", "elastic", "serve", "job"} <= listed and not {"submit", "ps"} & listed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["docter"], "did you mean doctor?"),
        (["plan", "lab.toml", "--byte", "1"], "did you mean --bytes? (see ddl plan --help)"),
        (["elastic", "rn", "train.py"], "invalid choice"),  # too short for a suggestion
        (["elastic", "resum", "a"], "did you mean resume? (see ddl elastic --help)"),
        (["elastic", "run", "--no_replace", "train.py"], "did you mean --no-replace?"),
        (["job", "list", "--jsno"], "did you mean --json? (see ddl job list --help)"),
        (["doctor", "--frobnicate"], "unrecognized arguments: --frobnicate (see ddl doctor"),
    ],
)
def test_misspelt_word_gets_a_suggestion(run_here: Run, words: list[str], message: str) -> None:
    ended = run_here([*DDL, *words])
    (line,) = ended.err.splitlines()
    assert (ended.code, ended.out) == (2, "")
    assert line.startswith("ddl: ") and message in line


def _commands(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, str]]:
    """Yield the parser's command and its subcommands, each with its help."""
    yield name, parser.format_help()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for listed in action._choices_actions:  # not the former names
                yield from _commands(action.choices[listed.dest], f"{name} {listed.dest}")


def _examples(shown: str) -> list[list[str]]:
    """Return the words of each example, without the comment after it."""
    part = re.search(r"^examples?:(.*?)(?:\n\n|\Z)", shown, re.DOTALL | re.MULTILINE)
    lines = part[1].splitlines() if part else []
    commands = [re.split(" {2,}|, and then", line.strip())[0] for line in lines]
    return [
        shlex.split(line)
        for line in commands
        if line.startswith(("ddl ", "ddlrun ")) and "$" not in line
    ]


# The help of `ddl` itself is one screen with the list of commands.
COMMANDS = [
    *list(_commands(make_parser(), "ddl"))[1:],
    ("ddlrun", arguments.make_parser().format_help()),
]


@pytest.mark.parametrize(("name", "shown"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_help_has_an_example_that_can_be_parsed(name: str, shown: str) -> None:
    examples = _examples(shown)
    own = [words for words in examples if " ".join(words).startswith(name)]
    assert own, shown
    for words in examples:
        if words[0] == "ddlrun":
            arguments.parse(words[1:])
        else:
            make_parser().parse_args(words[1:])


def test_interrupted_command_says_so(run_here: Run, tmp_path: Path) -> None:
    wait = """
import os, signal
def add_wait(add):
    def run(arguments):
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    add("wait").set_defaults(run=run)
"""
    env = install(tmp_path, "waiting", "wait = waiting:add_wait", wait)
    ended = run_here([*DDL, "wait"], env=env)
    assert (ended.code, ended.err) == (130, "ddl: interrupted\n")


def test_broken_command_of_another_package(run_here: Run, tmp_path: Path) -> None:
    env = install(tmp_path, "broken", "break = broken:add", "raise RuntimeError('not today')")
    ended = run_here([*DDL, "lab", "--help"], env=env).expect_success()
    assert (
        ended.err
        == "ddl: the command break is not available (broken:add): RuntimeError: not today\n"
    )
