# SPDX-License-Identifier: Apache-2.0
"""ddl_chainer's communicator, and ChainerMN's functions that use it."""

import importlib.util
from pathlib import Path

import pytest
from conftest import Run

PROGRAM = Path(__file__).parent / "programs" / "chainer_communicator.py"
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("chainer") is None, reason="there is no chainer"
)


@pytest.mark.parametrize("size", [2, 3])
def test_communicator(ddlrun: Run, size: int) -> None:
    ended = ddlrun(size, PROGRAM, limit=200).expect_success()
    assert all(ended.lines(rank)[-1] == "right" for rank in range(size))
