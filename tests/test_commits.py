# SPDX-License-Identifier: Apache-2.0
"""check_commits.py rejects subjects without the form `area: verb ...`, and subjects of several
topics."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from check_commits import faults, main, subjects


@pytest.mark.parametrize(
    ("subject", "fault"),
    [
        ("device: fix NULL read when two ranks of a process share a GPU", ""),
        ("shm: enlarge near rings to 1 MiB, to restore zero-copy sends, also", "66 characters"),
        ("elastic: the copy of the state keeps its memory to itself", "is not of the form"),
        ("elastic: who writes slowly does not seem to hang", "is not of the form"),
        ("Fix a bug", "is not of the form"),
        ("device: try ranks that are threads, and other findings", "'findings'"),
    ],
)
def test_subject_is_judged(subject: str, fault: str) -> None:
    assert fault in " ".join(faults(subject))
    assert bool(faults(subject)) == bool(fault)


def test_range_leaves_out_merges_and_an_unknown_start(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True)

    git("init", "-q", "-b", "main")
    for subject in ("base: add a file", "lib: remove a file"):
        git("commit", "-q", "--allow-empty", "-m", subject)
    git("checkout", "-q", "-b", "side", "HEAD~1")
    git("commit", "-q", "--allow-empty", "-m", "side: add a line")
    git("merge", "-q", "--no-edit", "main")
    assert {text for _, text in subjects("main~1..HEAD", tmp_path)} == {
        "side: add a line",
        "lib: remove a file",
    }
    assert subjects("0" * 40 + "..HEAD", tmp_path) == []


def test_hook_reads_the_first_line(tmp_path: Path) -> None:
    message = tmp_path / "COMMIT_EDITMSG"
    message.write_text("lib: add a function\n\nIt also does more.\n")
    assert main(["--message", str(message)]) == 0
    message.write_text("various things\n")
    assert main(["--message", str(message)]) == 1
