# SPDX-License-Identifier: Apache-2.0
"""check_words.py finds private words in names, text and file names, and accepts plain English."""

from __future__ import annotations

import subprocess
from pathlib import Path

import check_words
import pytest
from check_words import check

CASES = [
    ("libddl/src/comm/a.c", "int door_deadline;\n", "door_deadline"),
    ("libddl/src/comm/a.c", "typedef struct ddl__visitor ddl__visitor;\n", "ddl__visitor"),
    ("ddl_core/a.py", "def meetAll(): ...\n", "meetAll"),
    ("libddl/src/comm/seat.c", "int a;\n", "file name"),
    ("libddl/src/comm/a.c", "/* A rank ends without a last\n * word. */\n", "last word"),
    ("docs/a.md", "The black\nbox has it.\n", "black box"),
    ("README.md", "Four hosts, to try\nthings on.\n", "try things on"),
    ("bench/a.py", 'TEXT = "the conductor waits"\n', "conductor"),
    ("CHANGELOG.md", "# Changes\n- a culprit\n\n## 0.1\n- a stranger\n", "culprit"),
]


def tree(root: Path, path: str, text: str) -> Path:
    """A repository with this file alone."""
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", "-C", str(root), *command], check=True)
    return root


@pytest.mark.parametrize(("path", "text", "expected"), CASES)
def test_a_private_word_is_found(tmp_path: Path, path: str, text: str, expected: str) -> None:
    """Each word is found in each case, even across two lines."""
    found = check(tree(tmp_path, path, text))
    assert len({line.split(": ")[1] for line in found}) == 1
    assert expected in found[0].replace("\n", " ")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("libddl/src/comm/a.c", "/* A house in a letter: ordinary English. */ int size;\n"),
        ("ddl_core/a.py", '"""The ranks meet at a url."""\n'),
        ("CHANGELOG.md", "# Changes\n\n## 0.1\n- a stranger at the door\n"),
        ("other/a.c", "int door;\n"),
    ],
)
def test_ordinary_english_is_left_alone(tmp_path: Path, path: str, text: str) -> None:
    """The record of the past is exempt, and so are folders outside of the project."""
    assert check(tree(tmp_path, path, text)) == []


def test_docstrings_without_verb_or_noun_may_only_become_fewer(tmp_path: Path) -> None:
    text = 'def size():\n    """Of its slots, the number."""\n\n\ndef add():\n    """Add one."""\n'
    root = tree(tmp_path, "ddl_core/a.py", text)
    assert check(root, most_markers=1) == []
    first, place = check(root, most_markers=0)
    assert "at most 0" in first
    assert place == "ddl_core/a.py:2: 'Of its slots, the number.'"


def test_phrase_with_a_limit_may_only_become_rarer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(tmp_path, "docs/a.md", "There are so\nmany.\n")
    for most, findings in ((1, 0), (0, 2)):
        monkeypatch.setattr(check_words, "FEWER", {r"\bso many\b": ("N", most)})
        assert len(check(root)) == findings
