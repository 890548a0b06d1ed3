# SPDX-License-Identifier: Apache-2.0
"""All operations between real processes, over shared memory and over TCP, against NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Run

PROGRAM = Path(__file__).parent / "programs" / "collectives.py"


def checks(size: int) -> int:
    """How many comparisons the program makes."""
    other = size > 1
    reductions = 5 * (3 + 3 + other)
    return 8 * 4 * 2 * (reductions + 2 + size) + 1 + 8


@pytest.mark.parametrize("links", ["shm", "tcp"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_collectives(ddlrun: Run, size: int, links: str) -> None:
    ended = ddlrun(size, PROGRAM, env={"DDL_LINKS": links}).expect_success()
    for rank in range(size):
        local = f"{rank} {size}" if links == "shm" else "0 1"  # proven by shared memory alone
        assert ended.lines(rank) == [f"checked {checks(size)} local {local}"]


def test_collectives_alone(ddlrun: Run) -> None:
    ended = ddlrun(1, PROGRAM).expect_success()
    assert ended.lines(0) == [f"checked {checks(1)} local 0 1"]
