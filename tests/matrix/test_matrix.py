# SPDX-License-Identifier: Apache-2.0
"""A sample of the matrix between real processes, and properties of the choice of cases. `make
test-matrix` runs all of it.

`make test-matrix` runs all of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from matrix.cases import PARAMETERS, matching, pairs, pairwise, possible_pairs, sensible

if TYPE_CHECKING:
    from conftest import Run

PROGRAM = Path(__file__).with_name("program.py")


@pytest.mark.parametrize(
    ("links", "buffers", "size"),
    [
        ("shm", "private", 1),
        ("shm", "private", 2),
        ("tcp", "private", 3),
        ("shm", "shared", 4),
        *(
            pytest.param(links, buffers, size, marks=pytest.mark.slow)
            for links, buffers, size in (("shm", "mixed", 5), ("tcp", "private", 4))
        ),
    ],
)
def test_sample(ddlrun: Run, links: str, buffers: str, size: int) -> None:
    env = {"DDL_LINKS": links, "DDL_MATRIX_BUFFERS": buffers}
    ended = ddlrun(size, PROGRAM, env=env).expect_success()
    assert ended.lines(0)[0] == f"{len(matching(pairwise(), [f'size={size}']))} cases"
    for rank in range(size):
        local = f"{rank} {size}" if links == "shm" else "0 1"  # only shared memory proves it
        assert ended.lines(rank)[-1] == f"local {local}"


def test_failing_case_tells_how_to_run_it_again(ddlrun: Run) -> None:
    case = "operation=allreduce dtype=int8 op=sum size=2 count=1000 place=in mode=blocking"
    broken = ddlrun(2, PROGRAM, *case.split(), env={"DDL_MATRIX_BREAK": "1"})
    assert broken.code == 1
    assert "result: element 7 of 1000 is" in broken.err
    assert f"again: DDL_LINKS= ddlrun -n 2 {PROGRAM} {case}" in broken.err


def test_every_pair_of_values_occurs() -> None:
    cases = pairwise()
    assert {pair for case in cases for pair in pairs(case)} == possible_pairs()
    assert all(case.keys() == PARAMETERS.keys() and sensible(case) for case in cases)
    assert cases == pairwise()  # the same on all ranks
    assert len(cases) < 400
