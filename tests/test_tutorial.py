# SPDX-License-Identifier: Apache-2.0
"""The statements of docs/tutorial.md about a failing process."""

from __future__ import annotations

from pathlib import Path

from conftest import Run
from snippets import blocks


def test_a_failure_names_the_rank(ddlrun: Run, tmp_path: Path) -> None:
    shown = [b.text for b in blocks("docs/tutorial.md") if b.language == "python"]
    program, line = shown
    changed = program.replace("comm.allreduce(x)", f"{line}comm.allreduce(x)")
    ended = ddlrun(3, changed)
    assert ended.code != 0
    (told,) = (line for line in ended.err.splitlines() if line.startswith("ddlrun: rank "))
    assert "ddlrun: rank 1 on " in told
    assert "does not like this" in told
