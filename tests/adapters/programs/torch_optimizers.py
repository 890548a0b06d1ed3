# SPDX-License-Identifier: Apache-2.0
"""Run by test_torch_optimizers on 2 or more ranks: distributed optimizers whose gradients are ready
in a different order on each rank, or whose parameters are frozen and unfrozen. The variable MODULE
is ddl_torch or ddl_horovod.torch."""

import importlib
import os
import time

import torch
from torch import nn

ddl = importlib.import_module(os.environ["MODULE"])
ours = os.environ["MODULE"] == "ddl_torch"
ddl.init()
rank, size = ddl.rank(), ddl.size()
SHAPE = (100,)


def parameter(value: float = 0.0) -> nn.Parameter:
    return nn.Parameter(torch.full(SHAPE, value))


def distributed(parameters, **options):  # type: ignore[no-untyped-def]
    """SGD whose steps subtract the sum or average of all ranks' gradients."""
    more = {"bucket_bytes": 1} if ours else {}
    return ddl.DistributedOptimizer(torch.optim.SGD(parameters, lr=1.0, **options), **more)


def check(actual: torch.Tensor, wanted: float, what: str) -> None:
    assert torch.allclose(actual, torch.full(SHAPE, float(wanted))), (what, rank, actual[0], wanted)


mean = (size + 1) / 2  # the sum of rank + 1 over all ranks
unused = 1 / size  # a gradient of 1 that only rank 0 has


def operation(value: float) -> torch.Tensor:
    return ddl.allreduce(torch.full(SHAPE, value), op="sum" if ours else ddl.Sum)


# ---- the order of operations ----

# Rank 0 starts the first optimizer's operations in backward(), the other ranks in step().
for turn in range(4):
    first, second = [parameter(), parameter()], [parameter(), parameter()]
    optimizers = [distributed(first), distributed(second)]
    loss = sum(each.sum() for each in second) * (rank + 1)
    if rank == 0:
        loss = loss + sum(each.sum() for each in first)
    loss.backward()
    for each in optimizers if turn % 2 else optimizers[::-1]:
        each.step()
    for each in first:
        check(each.detach(), -unused, "first optimizer")
    for each in second:
        check(each.detach(), -mean, "second optimizer")

# The program runs an operation of its own between backward() and step().
lone, shared = parameter(), parameter()
optimizer = distributed([lone, shared])
((rank + 1) * shared + (lone if rank == 0 else 0)).sum().backward()
check(operation(rank + 10.0), sum(each + 10 for each in range(size)), "own operation")
optimizer.step()
check(lone.detach(), -unused, "beside an own operation")
check(shared.detach(), -mean, "beside an own operation")

# Batch normalization of all ranks, whose backward pass has operations.
torch.manual_seed(0)
before, after = nn.Linear(100, 100), nn.Linear(100, 100)
head = parameter(1.0)  # on rank 0 alone, the first parameter that has its gradient
norm = (ddl.SyncBatchNorm if ours else nn.BatchNorm1d)(100)
optimizer = distributed([*before.parameters(), *norm.parameters(), *after.parameters(), head])
result = after(norm(before(torch.randn(8, 100, generator=torch.Generator().manual_seed(rank)))))
(result * head if rank == 0 else result).sum().backward()
optimizer.step()
for each in (*before.parameters(), *norm.parameters(), *after.parameters(), head):
    whole = ddl.allgather(each.detach()[None])
    assert all(torch.equal(other, whole[0]) for other in whole)

# A sparse gradient on one rank. The other ranks send zeros when their backward pass has ended.
table = nn.Embedding(10, 100, sparse=True)
nn.init.zeros_(table.weight)
optimizer = distributed([*norm.parameters(), table.weight])
for turn in range(2):
    rows = table(torch.tensor([0, 1] * 4)) if rank == 0 or turn == 0 else 0.0
    norm(torch.randn(8, 100, requires_grad=True) + rows).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

# ---- frozen and unfrozen parameters ----

kept, moved, late = parameter(1.0), parameter(1.0), parameter(1.0)
late.requires_grad_(False)
optimizer = distributed([kept, moved, late], momentum=0.9, weight_decay=0.1)


def train_step() -> None:
    optimizer.zero_grad()
    ((kept + moved + late) * (rank + 1)).sum().backward()
    optimizer.step()


train_step()
assert not torch.equal(kept.detach(), torch.full(SHAPE, 1.0))
check(late.detach(), 1.0, "frozen before")
kept.requires_grad_(False)
value = kept.detach().clone()
for _ in range(2):
    train_step()
    assert torch.equal(kept.detach(), value) and kept.grad is None, "frozen later"
kept.requires_grad_(True)
late.requires_grad_(True)
train_step()
assert not torch.equal(kept.detach(), value), "unfrozen again"
check(late.detach(), 1 - mean - 0.1, "unfrozen later")

# A parameter that only rank 0 uses; afterwards no parameter is trained.
lone, shared = parameter(), parameter()
optimizer = distributed([lone, shared])
((rank + 1) * shared + (lone if rank == 0 else 0)).sum().backward()
lone.requires_grad_(False)  # after its gradient: the step still applies it
optimizer.step()
check(lone.detach(), -unused, "frozen before step()")
check(shared.detach(), -mean, "beside a frozen one")
optimizer.zero_grad()
shared.requires_grad_(False)
optimizer.step()
check(shared.detach(), -mean, "all are frozen")
for each in (lone, shared):
    each.requires_grad_(True)
((rank + 1) * shared).sum().backward()
optimizer.step()
check(shared.detach(), -2 * mean, "all are unfrozen")


def refused(text: str, function, *others: str) -> None:  # type: ignore[no-untyped-def]
    try:
        function()
    except Exception as raised:
        missing = [each for each in (text, *others) if each not in str(raised)]
        assert not missing, (missing, str(raised))
    else:
        raise AssertionError(f"{text!r} was not raised")


# Different parameters on each rank, with the same shape.
for which in ((0,), (0, 1)):
    pair = [parameter(), parameter()]
    optimizer = distributed(pair)
    sum(each.sum() for each in pair).backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank in which:
        pair[rank].requires_grad_(False)
    loss = sum(each.sum() for each in pair)
    if rank == 1 and len(which) == 2:
        time.sleep(0.5)  # the calls of other ranks have failed by now

    def step(loss=loss, optimizer=optimizer) -> None:  # type: ignore[no-untyped-def]
        loss.backward()
        optimizer.step()

    named = "parameter 0" if which == (0,) else "parameter"
    refused("requires gradients on rank", step, named, "rank 0", "rank 1")
    for each in pair:
        check(each.detach(), -1.0, "refused")

print("done")
ddl.shutdown()
