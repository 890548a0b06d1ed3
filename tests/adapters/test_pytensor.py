# SPDX-License-Identifier: Apache-2.0
"""ddl_pytensor's Ops in graphs, for each of PyTensor, Aesara and Theano that is installed."""

import importlib.util
from pathlib import Path

import pytest
from conftest import Run

PROGRAM = Path(__file__).parent / "programs" / "pytensor_gradients.py"
MODES = {
    "pytensor": ["NUMBA", "CVM", "FAST_COMPILE"],
    "aesara": ["FAST_RUN", "FAST_COMPILE"],
    "theano": ["FAST_RUN", "FAST_COMPILE"],
}


@pytest.mark.parametrize("framework", MODES)
def test_gradients(ddlrun: Run, framework: str) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"there is no {framework}")
    ended = ddlrun(2, PROGRAM, *MODES[framework], limit=500).expect_success()
    assert [ended.lines(rank)[-1] for rank in (0, 1)] == ["right"] * 2
