# SPDX-License-Identifier: Apache-2.0
"""Ranks that compute other bits get an error, and the others continue."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import popen

from ddl_elastic.step.admission import ROOM, Fingerprint, compare, pack, unpack

PROGRAM = Path(__file__).parent / "programs" / "admitted.py"
LIMIT = 120  # seconds, on a busy machine
FIRST = Fingerprint(0, "a", "s", "g", {"PyTorch": "2.13", "number of threads": "1", "MKL": "2024"})


def run(folder: Path, settings: Sequence[Mapping[str, str]]) -> list[tuple[int, Any, str]]:
    """Run a member with each of the settings, in separate processes. Return for each its exit code,
    its last line, and its stderr."""
    members = [
        popen(
            [sys.executable, PROGRAM, str(number)],
            cwd=folder,
            env={**each, "DDL_LOG": "off"},
            stdin=subprocess.PIPE,
        )
        for number, each in enumerate(settings)
    ]
    addresses = [each.stdout.readline().strip() for each in members if each.stdout]
    for each in members:
        assert each.stdin
        each.stdin.write(json.dumps(addresses) + "\n")
        each.stdin.flush()
    ends = []
    for each in members:
        out, err = each.communicate(timeout=LIMIT)
        ends.append((each.returncode, json.loads(out) if out else None, err))
    return ends


OTHER = {"ATEN_CPU_CAPABILITY": "default"}


@pytest.mark.slow
def test_another_instruction_set_is_refused(tmp_path: Path) -> None:
    ((_, alone, _),) = run(tmp_path, [{}])
    *others, (code, _, error) = run(tmp_path, [{}, {}, OTHER])
    assert [each[:2] for each in others] == [(0, {**alone, "members": [0, 1]})] * 2
    assert code == 1
    host = os.uname().nodename
    last = error.strip().splitlines()[-1]
    assert (
        f"AdmissionError: rank 2 on {host} is refused: it computes other bits than rank 0" in last
    )
    assert "Its instruction set is DEFAULT, there it is AVX" in last
    assert f"rank 2 on {host}: PyTorch " in last
    assert "ATEN_CPU_CAPABILITY default" in last
    assert last.removeprefix("ddl_elastic.step.admission.AdmissionError: ") in others[0][2]
    assert others[1][2] == ""


@pytest.mark.slow
def test_another_rank_0_goes_on_alone(tmp_path: Path) -> None:
    (code, told, _), *refused = run(tmp_path, [OTHER, {}, {}])
    assert (code, told["members"]) == (0, [0])
    for code, _, error in refused:
        assert code == 1
        assert "there it is DEFAULT" in error


def test_equal_ranks() -> None:
    assert compare(FIRST, replace(FIRST, member=1, host="b", environment={})) == ""


def test_what_differs_first() -> None:
    other = Fingerprint(3, "b", "s", "h", {**FIRST.environment, "MKL": "2025", "SET": "1"})
    assert compare(FIRST, other) == (
        "rank 3 on b is refused: it computes other bits than rank 0 on a. Its MKL is 2025, there it"
        " is 2024. rank 3 on b: PyTorch 2.13, number of threads 1, MKL 2025, SET 1. rank 0 on a:"
        " PyTorch 2.13, number of threads 1, MKL 2024"
    )
    other = replace(FIRST, member=3, share="h", environment={**FIRST.environment, "SET": "1"})
    assert "Its SET is 1, there it is not set." in compare(FIRST, other)


def test_equal_environments() -> None:
    other = replace(FIRST, member=1, share="h")
    assert "All compared settings are equal, so data or random numbers may differ." in compare(
        FIRST, other
    )
    with pytest.raises(
        RuntimeError, match="rank 1 on a and rank 0 on a start from different states"
    ):
        compare(FIRST, replace(other, state="t"))
    first, model = ({"also.x": "1", "model": each, "slot": each} for each in "23")
    with pytest.raises(RuntimeError, match=r"states: the first part that differs is model\."):
        compare(replace(FIRST, parts=first), replace(FIRST, state="t", parts=model))


def test_other_data() -> None:
    first, other = ({"len(data)": each, "batch": 64} for each in (1401, 1400))
    text = "rank 1 on a: len(data) is 1400, and 1401 on rank 0 on a. All workers need the same"
    with pytest.raises(RuntimeError, match=re.escape(text)):
        compare(replace(FIRST, job=first), replace(FIRST, member=1, job=other))


def test_another_initial_state_by_another_environment() -> None:
    """Random numbers, too, have other bits with other instruction sets."""
    other = Fingerprint(1, "b", "t", "h", {**FIRST.environment, "MKL": "2025"})
    assert "Its MKL is 2025" in compare(FIRST, other)


def test_a_candidate_travels() -> None:
    sent = replace(FIRST, environment={"long": "x" * 1000, "ü": "ö"})
    assert len(pack(sent)) == ROOM
    assert unpack(pack(sent).tobytes()) == replace(FIRST, environment={"long": "x" * 100, "ü": "ö"})
    many = {str(number): "x" * 100 for number in range(100)}
    with pytest.raises(ValueError, match="the description of rank 0 on a has 1"):
        pack(replace(FIRST, environment=many))
