# SPDX-License-Identifier: Apache-2.0
"""How `ddl` and `ddlrun` are found: commands of other packages, and the former module names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Run

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
    """Install a distribution with one module and one command of ddl; the environment to find it."""
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
    run_program: Run, tmp_path: Path, arguments: list[str], code: int, out: str, err: str
) -> None:
    env = install(tmp_path, "greeting", "greet = greeting:add_greet", GREET)
    ended = run_program([*DDL, *arguments], cwd=tmp_path, env=env)
    assert (ended.code, ended.out) == (code, out)
    assert ended.err.startswith(err) and bool(ended.err) == bool(err)


def test_help_lists_commands_of_other_packages(run_program: Run, tmp_path: Path) -> None:
    env = install(tmp_path, "greeting", "greet = greeting:add_greet", GREET)
    ended = run_program([*DDL, "--help"], cwd=tmp_path, env=env).expect_success()
    assert "other commands:\n  greet       say hello\n" in ended.out


def test_help_fits_one_screen_without_former_names(run_program: Run, tmp_path: Path) -> None:
    env = {"COLUMNS": "80"}
    shown = run_program([*DDL, "--help"], cwd=tmp_path, env=env).expect_success().out.splitlines()
    assert len(shown) <= 24 and max(map(len, shown)) <= 80
    assert "other commands:" not in shown  # each of ours is in a group
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
def test_misspelt_word_gets_a_suggestion(
    run_program: Run, tmp_path: Path, words: list[str], message: str
) -> None:
    ended = run_program([*DDL, *words], cwd=tmp_path)
    (line,) = ended.err.splitlines()
    assert (ended.code, ended.out) == (2, "")
    assert line.startswith("ddl: ") and message in line


def test_interrupted_command_says_so(run_program: Run, tmp_path: Path) -> None:
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
    ended = run_program([*DDL, "wait"], cwd=tmp_path, env=env)
    assert (ended.code, ended.err) == (130, "ddl: interrupted\n")


def test_broken_command_of_another_package(run_program: Run, tmp_path: Path) -> None:
    env = install(tmp_path, "broken", "break = broken:add", "raise RuntimeError('not today')")
    ended = run_program([*DDL, "lab", "--help"], cwd=tmp_path, env=env).expect_success()
    assert (
        ended.err
        == "ddl: the command break is not available (broken:add): RuntimeError: not today\n"
    )
