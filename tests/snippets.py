# SPDX-License-Identifier: Apache-2.0
"""The code blocks of README and docs, and what each needs to be run.

A comment right above a block, which no reader of the page sees, says more of it:

    <!-- snippet: ranks=2 -->                 under `ddlrun -n 2`, else alone
    <!-- snippet: file=train.py -->           is written there, for the shell blocks that follow
    <!-- snippet: fresh -->                   begins a new program; else Python blocks go on
    <!-- snippet: in=clone -->                runs in the top folder of the repository
    <!-- snippet: fails=MESSAGE -->           ends with an error that has this text
    <!-- snippet: slow -->                    by `make test-snippets`, not by `make test`
    <!-- snippet: quotes FILE -->             is part of this file, word by word
    <!-- snippet: by tests/FILE.py -->        this test runs it
    <!-- snippet: not run: REASON -->
    <!-- snippet: output -->                  what the block before it prints, in any order

    <!-- snippet: setup=NAME -->              comes after this part of snippet_setups.py
    <!-- setup
    lines in the block's language that come first
    -->
    <!-- setup file=NAME
    a file for the blocks that follow
    -->
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md")),
]
RUN = ("python", "bash", "c")
OTHERS = ("text", "console", "diff", "json", "toml", "yaml", "{toctree}", "{raw}", "{image}")

_PART = re.compile(
    r"<!-- (?P<kind>snippet:|setup)(?P<words>[^\n]*?)(?:\n(?P<code>.*?)\n)? ?-->\n"
    r"|^(?P<space> *)```(?P<language>\S*)[^\n]*\n(?P<text>.*?)^ *```$",
    re.DOTALL | re.MULTILINE,
)


def _setups() -> dict[str, str]:
    """Return the parts of snippet_setups.py by name, each with the parts before it."""
    text = (ROOT / "tests" / "snippet_setups.py").read_text()
    found: dict[str, str] = {}
    for part in text.split("\n# ---- ")[1:]:
        name, code = part.split("\n", 1)
        name, _, base = name.partition(": ")
        found[name] = found[base] + code if base else code
    return found


SETUPS = _setups()


@dataclass
class Block:
    """A code block of a page."""

    page: str
    line: int
    language: str
    text: str
    words: str = ""  # of its `snippet:` comment
    setup: str = ""
    files: dict[str, str] = field(default_factory=dict)  # lines before it

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def code(self) -> str:
        name = self.value("setup")
        return (SETUPS[name] if name else "") + self.setup + self.text

    def value(self, key: str) -> str:
        """Return the value of `key=value`; "" if it is missing."""
        found = re.search(rf"\b{key}=(\S+)", self.words)
        return found[1] if found else ""

    def rest(self, start: str) -> str:
        """Return the words after `start`, if they begin with it."""
        return self.words.removeprefix(start).strip() if self.words.startswith(start) else ""

    @property
    def fails(self) -> str:
        return self.words.partition("fails=")[2]

    @property
    def slow(self) -> bool:
        return "slow" in self.words.partition("fails=")[0].split()

    @property
    def runs(self) -> bool:
        """Return whether tests/test_snippets.py runs the block."""
        elsewhere = self.words.startswith(("quotes ", "by ", "not run:"))
        return self.language in RUN and not elsewhere


def blocks(page: str) -> list[Block]:
    """Return all fenced blocks of a page."""
    text = (ROOT / page).read_text()
    found: list[Block] = []
    words, setup, files, end = "", "", {}, 0
    for part in _PART.finditer(text):
        if part["kind"] == "snippet:":
            words = part["words"].strip()
        elif part["kind"] == "setup":
            name = part["words"].strip().removeprefix("file=")
            if name:
                files[name] = part["code"] + "\n"
            else:
                setup = part["code"] + "\n"
        else:
            line = text.count("\n", 0, part.start()) + 1
            own = textwrap.dedent(part["text"])
            block = Block(page, line, part["language"], own, words, setup, files)
            found.append(block)
            words, setup, files = "", "", {}
            end = part.end()
    assert not words and not setup, f"{page}: a comment for a snippet has none below it ({end})"
    return found


@dataclass
class Step:
    """A program to run: one block, or Python blocks that continue each other."""

    blocks: list[Block]

    @property
    def name(self) -> str:
        return self.blocks[0].name

    @property
    def language(self) -> str:
        return self.blocks[0].language

    @property
    def slow(self) -> bool:
        return any(block.slow for block in self.blocks)


def steps(page: str) -> list[Step]:
    """Return the programs of a page, in order. A Python block continues the one before it unless
    that is a file or it is `fresh`."""
    found: list[Step] = []
    program: Step | None = None
    for block in blocks(page):
        if not block.runs:
            continue
        alone = block.language != "python" or block.value("file")
        if program and not alone and "fresh" not in block.words.split():
            program.blocks.append(block)
            continue
        found.append(Step([block]))
        program = None if alone else found[-1]
    return found
