# SPDX-License-Identifier: Apache-2.0
"""PyTorch's gradients in a wire format of fewer bytes. What is checked is in
programs/torch_packing.py."""

from pathlib import Path

import pytest
from conftest import Run

PROGRAM = Path(__file__).parent / "programs" / "torch_packing.py"

pytestmark = pytest.mark.usefixtures("torch_native")


@pytest.mark.parametrize(
    ("size", "native"),
    [
        (2, True),
        pytest.param(3, True, marks=pytest.mark.slow),
        pytest.param(2, False, marks=pytest.mark.slow),
    ],
)
def test_packed_gradients_train_like_f32(ddlrun: Run, size: int, native: bool) -> None:
    """Ranks that are joined by TCP count as hosts."""
    env = {"DDL_LINKS": "tcp", "DDL_TORCH_NATIVE": str(int(native))}
    ended = ddlrun(size, PROGRAM, limit=300, env=env).expect_success()
    assert ended.out.count("done") == size


def test_horovod_packs_gradients(ddlrun: Run) -> None:
    program = PROGRAM.with_name("horovod_packing.py")
    ended = ddlrun(2, program, limit=300, env={"DDL_LINKS": "tcp"}).expect_success()
    assert ended.out.count("done") == 2
