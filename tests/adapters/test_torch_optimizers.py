# SPDX-License-Identifier: Apache-2.0
"""Distributed optimizers of PyTorch: the order of their operations, and frozen parameters. The
program is programs/torch_optimizers.py."""

from pathlib import Path

import pytest
from conftest import Run

PROGRAMS = Path(__file__).parent / "programs"
MODULES = ("ddl_torch", "ddl_horovod.torch")

pytestmark = pytest.mark.usefixtures("torch_native")


@pytest.mark.parametrize(
    "size", [pytest.param(2, marks=pytest.mark.slow), 3, pytest.param(4, marks=pytest.mark.slow)]
)
def test_optimizers_in_any_order_step_alike(ddlrun: Run, size: int) -> None:
    words = " ".join(f"MODULE={module} torch_optimizers" for module in MODULES)
    ended = ddlrun(size, PROGRAMS / "several.py", words, limit=120).expect_success()
    assert ended.out.count("done") == size * len(MODULES)
