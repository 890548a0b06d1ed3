# SPDX-License-Identifier: Apache-2.0
"""The history of a job's reports is kept in a file."""

from pathlib import Path
from typing import Any

import pytest

from ddl_scheduler.web.curve import MOST, Curve

pytestmark = pytest.mark.pure


def point(time: int, workers: int = 1) -> dict[str, Any]:
    return {"time": time, "step": time, "loss": 0.5, "workers": workers}


def test_another_process_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "curve.jsonl"
    first = Curve(path)
    for time in range(5):
        first.add(point(time))
    with path.open("a") as file:
        file.write('\n{"time": 5, "wor')  # the service was killed in the middle of a line
    second = Curve(path)
    assert second.points == first.points == [point(time) for time in range(5)]


def test_a_line_that_is_not_whole_takes_no_other_with_it(tmp_path: Path) -> None:
    path = tmp_path / "curve.jsonl"
    path.write_text('{"time": 0, "wor')
    Curve(path).add(point(1))
    assert Curve(path).points == [point(1)]


def test_a_long_job(tmp_path: Path) -> None:
    path = tmp_path / "curve.jsonl"
    curve = Curve(path)
    for time in range(5 * MOST):
        curve.add(point(time, workers=2 if time == 4567 else 1))
    assert MOST / 2 < len(curve.points) <= MOST
    assert curve.points[0] == point(0) and curve.points[-1]["time"] > 4.9 * MOST
    assert point(4567, 2) in curve.points
    assert Curve(path).points == curve.points
    assert path.stat().st_size < 100 * MOST


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    curve = Curve(tmp_path / "none" / "curve.jsonl")
    for time in range(MOST + 1):
        curve.add(point(time))
    assert curve.points[-1] == point(MOST)
