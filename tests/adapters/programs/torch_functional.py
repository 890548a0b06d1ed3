# SPDX-License-Identifier: Apache-2.0
"""Run by test_torch_collectives on two or three ranks: gradients through PyTorch's own operations,
over "ddl" and over Gloo.

    python torch_functional.py [sample]

sample: only some are compiled, which takes longest.
"""

import logging
import sys
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as differentiable
from torch import Tensor

import ddl_torch as ddl

ddl.init()
warnings.filterwarnings("ignore")  # PyTorch's warnings about deprecated names
logging.disable(logging.WARNING)
rank, size = ddl.rank(), ddl.size()
gloo, ours = dist.new_group(backend="gloo"), dist.group.WORLD
checked = 0
SAMPLE = ("all_reduce", "reduce_scatter_tensor", "all_to_all_single", "a chain")

Function = Callable[[Tensor, dist.ProcessGroup], list[Tensor]]


def values(rows: int, seed: int = 0) -> Tensor:
    """Return numbers with few bits each, so that additions do not round in any order."""
    generator = torch.Generator().manual_seed(31 * seed + rank)
    return torch.randint(-9, 9, (rows, 2), generator=generator).double()


def results(function: Function, group: dist.ProcessGroup, rows: int) -> list[Tensor]:
    own = values(rows).requires_grad_()
    given = function(own * 2, group)
    loss = sum(
        (each.reshape(-1, 2) * values(each.numel() // 2, 1 + i)).sum()
        for i, each in enumerate(given)
    )
    loss.backward()
    return [*(each.detach() + 0 for each in given), own.grad]


def expect_same(name: str, function: Function, rows: int = 2 * size, compiled: bool = True) -> None:
    global checked
    wanted = results(function, gloo, rows)
    ways = [function]
    if compiled and ("sample" not in sys.argv or name in SAMPLE):
        ways.append(torch.compile(function, backend="aot_eager", fullgraph=True))
    for way in ways:
        for got, want in zip(results(way, ours, rows), wanted, strict=True):
            assert torch.equal(got, want), f"{name}: {got}, not {want}"
            checked += 1


# ---- the functional collectives, to which torch.compile converts others ----

sent = [(rank + to) % 3 for to in range(size)]
expect_same("all_reduce", lambda a, g: [funcol.all_reduce(a, "sum", g)])
expect_same("average", lambda a, g: [funcol.all_reduce(a.detach() * size, "avg", g) * a])
# PyTorch has no gradient of this one.
expect_same("broadcast", lambda a, g: [funcol.broadcast(a.detach(), size - 1, g) * a])
expect_same(
    "reduce_scatter_tensor", lambda a, g: [funcol.reduce_scatter_tensor_autograd(a, "sum", 0, g)]
)
expect_same("all_gather_tensor", lambda a, g: [funcol.all_gather_tensor_autograd(a, 0, g)])
expect_same("all_gather_tensor 1", lambda a, g: [funcol.all_gather_tensor_autograd(a, 1, g)])
expect_same("all_to_all_single", lambda a, g: [funcol.all_to_all_single_autograd(a, None, None, g)])
expect_same(
    "all_to_all_single of different sizes",
    lambda a, g: [funcol.all_to_all_single_autograd(a, sent, sent, g)],
    sum(sent),
    compiled=False,
)
expect_same("several", lambda a, g: funcol.all_reduce_coalesced([a, a * a], "sum", g))
expect_same(
    "a chain",
    lambda a, g: [
        funcol.all_reduce(funcol.all_gather_tensor_autograd(a, 0, g) * 3, "sum", g),
        funcol.reduce_scatter_tensor_autograd(a * a, "sum", 0, g),
    ],
)

# ---- torch.distributed.nn.functional ----


def rows_of(tensor: Tensor) -> list[Tensor]:
    return list(tensor.chunk(size))


for root in range(size):
    expect_same(
        "nn broadcast",
        lambda a, g, root=root: [differentiable.broadcast(a, root, g)],
        compiled=False,
    )
    expect_same(
        "nn reduce",
        lambda a, g, root=root: [differentiable.reduce(a, root, group=g) * (rank == root)],
        compiled=False,
    )
    expect_same(
        "nn gather", lambda a, g, root=root: list(differentiable.gather(a, root, g)), compiled=False
    )
    expect_same(
        "nn scatter",
        lambda a, g, root=root: [differentiable.scatter(rows_of(a), root, g)],
        compiled=False,
    )
for name, function in {
    "all_reduce": lambda a, g: [differentiable.all_reduce(a, group=g)],
    "all_gather": lambda a, g: list(differentiable.all_gather(a, g)),
    "reduce_scatter": lambda a, g: [
        differentiable.reduce_scatter(torch.empty(2, 2).double(), rows_of(a), group=g)
    ],
    "all_to_all": lambda a, g: list(
        differentiable.all_to_all([torch.empty(2, 2).double() for _ in range(size)], rows_of(a), g)
    ),
    "all_to_all_single": lambda a, g: [
        differentiable.all_to_all_single(torch.empty_like(a), a, group=g)
    ],
}.items():
    expect_same(f"nn {name}", function, compiled=False)


@torch.compile(backend="aot_eager", fullgraph=True)
def in_place(x: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y)
    return y + 1


assert in_place(torch.ones(3)).tolist() == [2 * size + 1] * 3

# ---- ddl_torch's own under torch.compile: a graph ends before them, and another one starts after
# ----

for name, own in {
    "allreduce": ddl.allreduce,
    "broadcast": ddl.broadcast,
    "allgather": ddl.allgather,
    "reduce_scatter": ddl.reduce_scatter,
    "alltoall": ddl.alltoall,
}.items():
    compiled = torch.compile(lambda a, own=own: own(a * 2) * 3, backend="aot_eager")
    x, y = values(2 * size).requires_grad_(), values(2 * size).requires_grad_()
    (compiled(x) ** 2).sum().backward()
    ((own(y * 2) * 3) ** 2).sum().backward()
    assert torch.equal(x.grad, y.grad), name

ddl.shutdown()
print(f"checked {checked}", flush=True)
