# SPDX-License-Identifier: Apache-2.0
"""The operations of a process group and a training, on tensors of any device, to be compared with
those on the CPU bit by bit. For programs of one rank."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

Make = Callable[..., Tensor]


def on(device: str) -> Make:
    def make(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
        draw = torch.Generator().manual_seed(100 * dist.get_rank() + seed)
        return torch.randn(*shape, generator=draw).to(dtype).to(device)

    return make


def results(make: Make) -> list[Tensor]:
    rank, size = dist.get_rank(), dist.get_world_size()
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


def compare(device: str) -> int:
    pairs = list(zip(results(on("cpu")), results(on(device)), strict=True))
    for number, (expected, found) in enumerate(pairs):
        assert found.device.type == device
        assert torch.equal(found.cpu(), expected), (number, found.cpu(), expected)
    return len(pairs)


def compare_trainings(device: str, rounding: float) -> None:
    for expected, found in zip(trained("cpu"), trained(device), strict=True):
        assert torch.allclose(found, expected, rtol=rounding, atol=rounding)
