# SPDX-License-Identifier: Apache-2.0
"""torch.set_flush_denormal on one rank of two: all ranks get the same bits, and the rank keeps its
mode."""

import pytest
from conftest import Run

pytestmark = pytest.mark.usefixtures("torch_native")

PROGRAM = """
import hashlib
import torch
import torch.distributed as dist
dist.init_process_group("ddl")
rank = dist.get_rank()
flushes = rank == 0 and torch.set_flush_denormal(True)
digest = hashlib.sha256()
for count in (100, 100_000, 3_000_000):
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            for asynchronous in (False, True):
                tiny = torch.finfo(dtype).tiny / 8
                tensor = torch.tensor([tiny], dtype=torch.float64).to(dtype).repeat(count)
                work = dist.all_reduce(tensor, op, async_op=asynchronous)
                if asynchronous:
                    work.wait()
                bits = tensor.view(torch.uint8).numpy()
                assert bits.any(), (count, dtype, op)
                digest.update(bits.tobytes())
if flushes:
    assert (torch.tensor([1e-40]) * 1).view(torch.int32).item() == 0, "no longer flushes"
print("flushes" if flushes else "keeps", digest.hexdigest())
dist.destroy_process_group()
"""


def test_one_rank_flushes_subnormals(ddlrun: Run) -> None:
    ended = ddlrun(2, PROGRAM, limit=120).expect_success()
    mode, digest = zip(*(ended.lines(rank)[0].split() for rank in range(2)), strict=True)
    assert mode == ("flushes", "keeps")
    assert digest[0] == digest[1]
