# SPDX-License-Identifier: Apache-2.0
"""Run by test_torch_collectives on any number of ranks: the option `invariant` of process groups,
and sums over logical workers, against a tree of NumPy's additions. With DDL_INVARIANT=size, the
default group has the setting of the environment."""

import os
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from checks import operand, refused, tree

import ddl_torch
from ddl_core.errors import InvalidArgument

WORKERS, SLICES = 8, 8
SHAPE = (24, 5000)  # rows for each of 2, 3 and 4 ranks

refused(InvalidArgument, "invariant is 'sizes'; must be", ddl_torch.Options, invariant="sizes")
dist.init_process_group("ddl", timeout=timedelta(seconds=60))
rank, size = dist.get_rank(), dist.get_world_size()
first, end = rank * WORKERS // size, (rank + 1) * WORKERS // size
rows = slice(rank * SHAPE[0] // size, (rank + 1) * SHAPE[0] // size)


def same(result: torch.Tensor, expected: np.ndarray) -> None:
    assert result.shape == expected.shape and result.numpy().tobytes() == expected.tobytes()


def grouped(invariant: str) -> Any:
    return dist.new_group(pg_options=ddl_torch.Options(invariant=invariant))


# ---- size ----

by_size = None if "DDL_INVARIANT" in os.environ else grouped("size")
total = tree([operand(r, SHAPE) for r in range(size)])
for op, expected in ((dist.ReduceOp.SUM, total), (dist.ReduceOp.AVG, total / np.float32(size))):
    whole, sliced, reduced = (torch.from_numpy(operand(rank, SHAPE)) for _ in range(3))
    dist.all_reduce(whole, op, group=by_size)
    same(whole, expected)
    for part in sliced.view(SLICES, -1):
        dist.all_reduce(part, op, group=by_size, async_op=True).wait()
    same(sliced, expected)
    dist.reduce(reduced, 0, op, group=by_size)
    if rank == 0:
        same(reduced, expected)
    block = torch.empty(SHAPE[0] // size, SHAPE[1])
    blocks = list(torch.from_numpy(operand(rank, SHAPE)).chunk(size))
    dist.reduce_scatter(block, blocks, op, group=by_size)
    same(block, expected[rows])
halves = [torch.from_numpy(operand(r, SHAPE)).bfloat16() for r in range(size)]
expected, whole, sliced = tree(halves), halves[rank].clone(), halves[rank].clone()
dist.all_reduce(whole, group=by_size)
for part in sliced.view(SLICES, -1):
    dist.all_reduce(part, group=by_size)
block = torch.empty_like(expected[rows])
dist.reduce_scatter(block, list(halves[rank].chunk(size)), group=by_size)
assert all(map(torch.equal, (whole, sliced, block), (expected, expected, expected[rows])))

# ---- workers: equal bits on any number of ranks, in a group of any setting ----

own = torch.from_numpy(np.stack([operand(v, SHAPE) for v in range(first, end)]))
kept = own.clone()
total = tree([operand(v, SHAPE) for v in range(WORKERS)])
for group in (by_size, grouped(f"ranks:{WORKERS}")):
    same(ddl_torch.allreduce_parts(own, WORKERS, group=group), total)
    average = ddl_torch.allreduce_parts(own.mT, WORKERS, op="average", group=group).mT
    same(average.contiguous(), total / np.float32(WORKERS))
    same(ddl_torch.reduce_scatter_parts(own, WORKERS, group=group), total[rows])
assert torch.equal(own, kept)
expected = tree(
    [torch.from_numpy(operand(v, SHAPE)).bfloat16().float().numpy() for v in range(WORKERS)]
)
result = ddl_torch.allreduce_parts(own.bfloat16(), WORKERS)
assert torch.equal(result, torch.from_numpy(expected).bfloat16())
complexes = torch.complex(own, own).conj()
same(ddl_torch.allreduce_parts(complexes, WORKERS).conj().resolve_conj().imag.contiguous(), total)
one = (
    torch.from_numpy(operand(0, SHAPE)[None]) if rank == size - 1 else own[:0]
)  # one worker: on the last rank
same(ddl_torch.allreduce_parts(one, 1), operand(0, SHAPE))


def doubled(operands: torch.Tensor) -> torch.Tensor:
    return ddl_torch.allreduce_parts(operands * 2, WORKERS) / 2


if rank == 0:  # torch.compile takes seconds to load
    doubled = torch.compile(doubled, backend="eager")
same(doubled(own), total)

# ---- errors, after which the groups still work ----

by_ranks = grouped(f"ranks:{WORKERS}")
plain = torch.ones(SHAPE)
text = f"ranks:{WORKERS}, but the comm has {size} ranks"
refused(ValueError, text, dist.all_reduce, plain, group=by_ranks)
refused(ValueError, "allreduce_parts of ddl_torch", dist.all_reduce, plain, group=by_ranks)
block, blocks = torch.ones(2), list(torch.ones(size, 2))
text = "reduce_scatter_parts of ddl_torch"
refused(ValueError, text, dist.reduce_scatter, block, blocks, group=by_ranks)
for error, text, operands, workers, op in (
    (InvalidArgument, f"rank {rank} has {end - first} workers", own[1:], WORKERS, "sum"),
    (InvalidArgument, "workers is 0; must be from 1 to 4096", own, 0, "sum"),
    (InvalidArgument, "has no dimension", torch.ones(()), WORKERS, "sum"),
    (InvalidArgument, "op is 'mean'; must be one of sum", own, WORKERS, "mean"),
    (NotImplementedError, "must be DDL_SUM or DDL_AVERAGE for an ordered sum", own, WORKERS, "max"),
    (NotImplementedError, "has no gradient", own.clone().requires_grad_(), WORKERS, "sum"),
    (TypeError, "operands has type list", [plain], WORKERS, "sum"),
    (ValueError, "pass operands.to_dense().cpu()", own.to("meta"), WORKERS, "sum"),
):
    refused(error, text, ddl_torch.allreduce_parts, operands, workers, op, group=by_ranks)
refused(ValueError, "group is 5", ddl_torch.allreduce_parts, own, WORKERS, group=5)
uneven = torch.ones(end - first, size + 1)
refused(InvalidArgument, "multiple of", ddl_torch.reduce_scatter_parts, uneven, WORKERS)
same(ddl_torch.allreduce_parts(own, WORKERS, group=by_ranks), total)

# ---- a mismatch, and groups that are created from groups ----

mine, other = ("size", "ranks:8") if rank else ("ranks:8", "size")
try:
    grouped(mine)
except ValueError as error:
    assert f"DDL_INVARIANT is {mine} on rank {rank} " in str(error), error
    assert f" and {other} on rank " in str(error), error
else:
    raise AssertionError("a group of several settings was created")
dist.barrier()  # no rank leaves before the others have failed
dist.destroy_process_group()

ddl_torch.init(timeout=60, invariant=f"ranks:{WORKERS}")
subgroup = dist.new_group(range(size), timeout=timedelta(seconds=60))
refused(ValueError, f"ranks:{WORKERS}", dist.all_reduce, plain, group=subgroup)
if hasattr(dist.group.WORLD, "split_group"):
    part = dist.group.WORLD.split_group(list(range(size)), timedelta(seconds=60))
    refused(ValueError, f"ranks:{WORKERS}", part.allreduce, plain)
dist.all_reduce(plain, group=grouped("none"))
assert plain[0, 0] == size
ddl_torch.shutdown()
print("done")
