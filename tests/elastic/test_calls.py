# SPDX-License-Identifier: Apache-2.0
"""Workers join in a later call of `job.steps`, and get the results of earlier evaluations."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "programs" / "calls.py"
DDL = [sys.executable, "-m", "ddl_launch.commands", "elastic", "run"]
LIMIT = 240  # seconds, on a busy machine
STEPS = 7  # of the first call


@pytest.mark.slow
@pytest.mark.parametrize("late", [0, 0.5])
def test_the_last_ones_have_joined_in_a_later_call(
    run_here: Any, tmp_path: Path, late: float
) -> None:
    def run(*words: str) -> tuple[str, list[dict[str, Any]]]:
        command = [*DDL, "--report", tmp_path / "report.json", *words]
        done = run_here(command, limit=LIMIT).expect_success()
        (found,) = re.findall(r"^\[\d+\] (state \w{64} evaluated \w{64})$", done.out, re.M)
        return found, json.loads((tmp_path / "report.json").read_text())["events"]

    expected, _ = run("-n", "1", str(PROGRAM))
    kills = f"{STEPS}:0,{2 * STEPS}:1"
    found, events = run("-n", "2", str(PROGRAM), "--kills", kills, "--late", str(late))
    assert found == expected
    joined = {each["member"]: each["step"] for each in events if each["kind"] == "joined"}
    assert {2, 3} == {*joined}, events
    assert all(step > STEPS for step in joined.values())
    assert [each["member"] for each in events if each["kind"] == "died"] == [0, 1]
