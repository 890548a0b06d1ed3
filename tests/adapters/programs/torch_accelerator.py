# SPDX-License-Identifier: Apache-2.0
"""One rank: operations on tensors of an accelerator, which is the stand-in of accelerator.cpp,
against those on the CPU, bit by bit; the stream of a result; and DistributedDataParallel.

    torch_accelerator.py FOLDER PART

FOLDER has the extension; PART is the part of ddl_torch that runs: native or python.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

sys.path.insert(0, sys.argv[1])
accelerator: Any = importlib.import_module("accelerator")  # which needs torch
torch.utils.rename_privateuse1_backend("standin")
module: Any = types.ModuleType("torch.standin")
module.is_available = lambda: True
module.device_count = lambda: 1
module.current_device = lambda: 0
module._is_in_bad_fork = lambda: False
torch._register_device_module("standin", module)

dist.init_process_group("cpu:ddl,standin:ddl")
rank, size = dist.get_rank(), dist.get_world_size()
Make = Callable[..., Tensor]


def on(device: str) -> Make:
    """`make(*shape)`: this rank's operand, there."""

    def make(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
        draw = torch.Generator().manual_seed(100 * rank + seed)
        return torch.randn(*shape, generator=draw).to(dtype).to(device)

    return make


def results(make: Make) -> list[Tensor]:
    found = []

    def keep(*tensors: Tensor) -> None:
        found.extend(tensors)

    for dtype in (torch.float32, torch.bfloat16):
        tensor = make(1000, dtype=dtype)
        dist.all_reduce(tensor)
        keep(tensor)
    apart = make(40, 30).t()  # not contiguous
    dist.all_reduce(apart, dist.ReduceOp.MAX)
    keep(apart)
    scaled = make(50)
    dist.all_reduce(scaled, dist._make_nccl_premul_sum(0.0))
    keep(scaled)
    tensor = make(7)
    dist.broadcast(tensor, size - 1)
    keep(tensor)
    tensor = make(7)
    dist.reduce(tensor, 0)
    keep(*[tensor] * (rank == 0))
    every = [make(9, seed=r) for r in range(size)]
    dist.all_gather(every, make(9))
    keep(*every)
    whole = make(9 * size)
    dist.all_gather_into_tensor(whole, make(9))
    keep(whole)
    block = make(11)
    dist.reduce_scatter_tensor(block, make(11 * size))
    keep(block)
    dist.reduce_scatter(block, [make(11, seed=r) for r in range(size)])
    keep(block)
    received = make(3 * size)
    dist.all_to_all_single(received, make(3 * size))
    keep(received)
    tensor = make(5)
    dist.scatter(tensor, [make(5, seed=r) for r in range(size)] if rank == 0 else None)
    keep(tensor)
    lists = [make(5, seed=r) for r in range(size)] if rank == 0 else None
    dist.gather(make(5), lists)
    keep(*(lists or []))
    message = make(17)
    if rank == 0:
        dist.send(message, 1)
    elif rank == 1:
        dist.recv(message, 0)
    keep(message)
    return found


def check_async() -> None:
    """Whoever ends a work, the result comes in the stream in which it was called."""
    tensor = on("standin")(1000)
    expected = tensor.cpu()
    dist.all_reduce(expected)
    accelerator.use_stream(5)
    work = dist.all_reduce(tensor, async_op=True)
    accelerator.use_stream(0)
    work.wait()
    assert accelerator.copied_in() == 5, accelerator.copied_in()
    assert torch.equal(tensor.cpu(), expected)
    accelerator.use_stream(6)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    accelerator.use_stream(0)
    future.wait()
    assert accelerator.copied_in() == 6, accelerator.copied_in()
    dist.all_reduce(expected)
    assert torch.equal(tensor.cpu(), expected)


def trained(device: str) -> list[Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    parallel = torch.nn.parallel.DistributedDataParallel(model.to(device))
    optimizer = torch.optim.SGD(parallel.parameters(), 0.1, foreach=False)
    for step in range(4):
        optimizer.zero_grad()
        parallel(on(device)(32, 8, seed=step)).pow(2).mean().backward()
        optimizer.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


pairs = zip(results(on("cpu")), results(on("standin")), strict=True)
compared = 0
for expected, found in pairs:
    assert found.device.type == "standin"
    assert torch.equal(found.cpu(), expected), (compared, found.cpu(), expected)
    compared += 1
if sys.argv[2] == "native":
    check_async()
for expected, found in zip(trained("cpu"), trained("standin"), strict=True):
    assert torch.equal(found, expected)
print("compared", compared)
dist.destroy_process_group()
