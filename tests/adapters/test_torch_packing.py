# SPDX-License-Identifier: Apache-2.0
"""PyTorch's gradients in a wire format of fewer bytes. What is checked is in
programs/*_packing.py."""

from pathlib import Path

import pytest
from conftest import Run

SEVERAL = Path(__file__).parent / "programs" / "several.py"

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
    """Ranks that are joined by TCP count as hosts. The programs run in the same processes."""
    env = {"DDL_LINKS": "tcp", "DDL_TORCH_NATIVE": str(int(native)), "DDL_LOG": "info"}
    programs = ["torch_packing", "torch_sharded_packing"]
    programs += ["horovod_packing"] * (native and size == 2)
    ended = ddlrun(size, SEVERAL, " ".join(programs), limit=300, env=env).expect_success()
    assert ended.out.count("done") == size * len(programs)
    assert ended.err.count("To compare: ddl plan") == 1  # once for the group, on rank 0
    assert f"DistributedDataParallel: {size} hosts, gradients of 0.0632 MiB, f32 on" in ended.err


HINT = """
import torch
from torch.nn.parallel import DistributedDataParallel
import ddl_torch as ddl
ddl.init()
model = DistributedDataParallel(torch.nn.Linear(256, 256))
ddl.compress_gradients(model, "int4")
for _ in range(2):
    model(torch.ones(1, 256)).sum().backward()
ddl.shutdown()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"DDL_LINKS": "tcp"}, "int4 on the wire"),
        ({}, None),  # one host
        ({"DDL_LINKS": "tcp", "DDL_LOG": "warn"}, None),
    ],
)
def test_hint_names_the_wire_format(ddlrun: Run, env: dict[str, str], words: str | None) -> None:
    ended = ddlrun(2, HINT, env={"DDL_LOG": "info", **env}).expect_success()
    assert ended.err.count("DistributedDataParallel: 2 hosts") == (words is not None), ended.err
    assert words is None or words in ended.err
