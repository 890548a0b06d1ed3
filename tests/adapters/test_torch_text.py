# SPDX-License-Identifier: Apache-2.0
"""The example that trains a transformer on text."""

import re
from pathlib import Path

import pytest
from conftest import Run

pytestmark = pytest.mark.usefixtures("torch_native")


@pytest.mark.slow
def test_it_learns(ddlrun: Run, tmp_path: Path) -> None:
    program = Path(__file__).resolve().parent.parent.parent / "examples" / "gpt_text.py"
    small = [
        *("--text", "python", "--width", "64", "--layers", "2", "--megabytes", "1"),
        *("--compression", "bf16"),
    ]
    options = ["--steps", "60", "--curve", "loss.png"]
    ended = ddlrun(2, program, *options, *small, limit=180).expect_success()
    found = re.search(
        r"loss ([\d.]+) to ([\d.]+)  \d+ tokens/s  \d+ % of .*  2 processes", ended.out
    )
    assert found, ended.out
    assert float(found[1]) > 5 and float(found[2]) < 3.3
    assert "[0] def " in ended.out and "60/60" in ended.err
    assert (tmp_path / "loss.png").stat().st_size > 1000
