# SPDX-License-Identifier: Apache-2.0
"""Run by test_torch_shared_memory on two or more ranks of one host: tensors in shared memory. The
results of training have the same bits, the tensors are in shared memory, and other ranks map it."""

import copy
import io
import os
import pickle
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_collectives
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import ddl_torch as ddl

STEPS, WIDTH = 4, 600
MIB = 1 << 20


def mapping(address: int) -> tuple[str, int]:
    """Return the permissions and the number of the libddl memory file that contains this address;
    "", 0 if there is none."""
    for start, end, kind, inode in libddl_files():
        if start <= address < end:
            return kind, inode
    return "", 0


def libddl_files() -> list[tuple[int, int, str, int]]:
    found = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            if "memfd:libddl" in line:
                span, kind, _, _, inode, *_ = line.split()
                start, end = (int(part, 16) for part in span.split("-"))
                found.append((start, end, kind, int(inode)))
    return found


def own_files() -> set[int]:
    """Return the numbers of the files that this process has created, not only mapped."""
    descriptors = Path("/proc/self/fd")
    links = [(os.readlink(each), each) for each in descriptors.iterdir() if os.path.lexists(each)]
    return {each.stat().st_ino for link, each in links if "memfd:libddl" in link}


def check_mapped_by_all(inodes: set[int], kind: str) -> None:
    """Check that every rank maps these files of every other rank."""
    everyones: list[Any] = [None] * ddl.size()
    dist.all_gather_object(everyones, inodes)
    here = {inode: kind for _, _, kind, inode in libddl_files()}
    for rank, theirs in enumerate(everyones):
        assert theirs and all(here.get(inode, "").startswith(kind) for inode in theirs), (
            f"rank {ddl.rank()} maps {here}, rank {rank} has {theirs}"
        )


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def train(model: nn.Module) -> torch.Tensor:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(4, WIDTH, generator=data)).square().sum().backward()
        optimizer.step()
    flat = [getattr(p, "_local_tensor", p).detach().flatten() for p in model.parameters()]
    return torch.cat(flat).clone()


def train_ddp(choice: bool | str | None) -> torch.Tensor:
    shared, before = choice is not False, own_files()
    model = DistributedDataParallel(Network(), gradient_as_bucket_view=True, bucket_cap_mb=1)
    result = train(model)
    found = {mapping(p.grad.data_ptr()) for p in model.parameters() if p.grad is not None}
    inodes = {inode for _, inode in found}
    assert (0 not in inodes) if shared else inodes == {0}, found
    if shared:  # results were stored into the shared buffers
        check_mapped_by_all(inodes, "rw-s")
    if choice in (True, None):
        assert own_files() - before == inodes, "the first buckets were kept"
    return result


def train_fsdp(shared: bool) -> torch.Tensor:
    allocated, allocate = set(), _fsdp_collectives.DefaultAllocMixin.allocate

    def watched(self: Any, *sizes: Any, **options: Any) -> torch.Tensor:
        tensor = allocate(self, *sizes, **options)
        if tensor.nbytes >= MIB:
            allocated.add(mapping(tensor.data_ptr())[1])
        return tensor

    _fsdp_collectives.DefaultAllocMixin.allocate = watched  # type: ignore[method-assign]
    try:
        model = Network()
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
        train(model)
        allocated.clear()
        result = train(model)
    finally:
        _fsdp_collectives.DefaultAllocMixin.allocate = allocate  # type: ignore[method-assign]
    assert (0 not in allocated) if shared else allocated == {0}, allocated
    assert len(allocated) <= 4, "the memory of freed buffers is not used again"
    if shared:
        check_mapped_by_all(allocated, "r")
    return result


def train_fsdp1(shared: bool) -> torch.Tensor:
    """The flat buffers are ordinary tensors: only "all" puts them into shared memory."""
    on_cpu = torch.device("cpu")
    model = FullyShardedDataParallel(Network(), device_id=on_cpu, use_orig_params=True)
    found = set()
    for layer in model.module.layers:  # whose weights are parts of the gathered buffer there
        layer.register_forward_hook(lambda self, *_: found.add(mapping(self.weight.data_ptr())[1]))
    result = train(model)
    found |= {mapping(p.grad.data_ptr())[1] for p in model.parameters() if p.grad is not None}
    assert (0 not in found) if shared else found == {0}, found
    return result


def training() -> None:
    results = []
    for choice in (False, None, True, "all"):  # None is the default
        ddl.init(shared_memory=choice)
        ddp, fsdp = train_ddp(choice), train_fsdp(choice is not False)
        results.append((ddp, fsdp, train_fsdp1(choice == "all")))
        elsewhere = torch.ones(MIB)
        assert (mapping(elsewhere.data_ptr())[1] != 0) == (choice == "all")
        ddl.shutdown()
        elsewhere += 1  # its endpoint has been destroyed
        assert elsewhere.sum() == 2 * MIB
        assert not mapping(torch.empty(MIB).data_ptr())[1], "without an endpoint"
    for other in results[1:]:
        for one, same in zip(results[0], other, strict=True):
            assert torch.equal(one, same), "other bits"


def as_before() -> None:
    too_large = (1 << 44, 1 << 50)
    refusals = [refusal(size) for size in too_large]
    assert "can't allocate memory" in refusals[-1]
    ddl.init(shared_memory="all")
    source = torch.arange(2 * MIB, dtype=torch.float32)
    assert mapping(source.data_ptr())[1]
    same: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda t: pickle.loads(pickle.dumps(t)),
        copy.deepcopy,
        through_a_file,
        lambda t: t.clone().share_memory_(),
        lambda t: t.clone().resize_(3 * MIB)[: 2 * MIB],
        lambda t: torch.from_numpy(t.numpy()),
        lambda t: t.reshape(2, -1).t().contiguous().t().reshape(-1),
        lambda t: torch._lazy_clone(t),
    ]
    for number, function in enumerate(same):
        assert torch.equal(function(source), source), number
    assert source.clone().share_memory_().is_shared()
    grown = source.clone().resize_(8 * MIB)
    assert mapping(grown.data_ptr())[1]
    assert [refusal(size) for size in too_large] == refusals
    many = [torch.full((MIB,), float(i)) for i in range(300)]  # more than the system can share
    assert all(t[-1] == i for i, t in enumerate(many))
    dist.all_reduce(many[7])
    assert many[7][5] == 7 * ddl.size()
    ddl.shutdown()
    assert all(t[0] == i for i, t in enumerate(many) if i != 7)
    del many
    assert torch.equal(source, torch.arange(2 * MIB, dtype=torch.float32))


def refusal(size: int) -> str:
    """Return PyTorch's message for an allocation of this many bytes."""
    try:
        torch.empty(size, dtype=torch.uint8)
    except RuntimeError as error:
        return str(error)
    return ""


def through_a_file(tensor: torch.Tensor) -> torch.Tensor:
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    loaded: torch.Tensor = torch.load(file)
    return loaded


class Overwriting(Dataset):  # type: ignore[type-arg]
    """Samples that report what the worker found; then it overwrites all."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        found = self.tensor[:: MIB // 4].clone()
        whole = bool((self.tensor == self.tensor[0]).all())
        self.tensor.fill_(-1 - index)
        own = torch.ones(2 * MIB)  # of the worker
        return torch.cat([found[:2], torch.tensor([float(whole), own.sum(), os.getpid()])])


def loader() -> None:
    ddl.init(shared_memory="all")
    tensor = torch.zeros(25_000_000)
    assert mapping(tensor.data_ptr())[1]
    for epoch in range(1, 3):
        tensor.fill_(epoch)
        dist.all_reduce(tensor)
        value = epoch * ddl.size()
        batches = iter(DataLoader(Overwriting(tensor), num_workers=2, batch_size=2))
        tensor.fill_(100)  # the workers have been forked
        dist.all_reduce(tensor)
        firsts, workers = [], set()
        for batch in batches:
            for first, second, whole, own, pid in batch.tolist():
                assert first == second and whole and own == 2 * MIB and pid != os.getpid()
                firsts.append(first)
                workers.add(pid)
        assert len(workers) == 2 and sorted(firsts) == [-3.0, -1.0, value, value], firsts
        assert (tensor == 100 * ddl.size()).all(), "a worker wrote to it"
    ddl.shutdown()


def death() -> None:
    ddl.init(shared_memory=True)
    model = DistributedDataParallel(Network(), gradient_as_bucket_view=True, bucket_cap_mb=1)
    train(model)
    if ddl.rank() == 1:  # the last gradients of the backward pass
        model.module.layers[0].weight.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    try:
        train(model)
    except dist.DistBackendError as error:
        assert "rank 1 " in str(error) and "ddl allreduce" in str(error), error
    else:
        raise AssertionError("it has ended")
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    for gradient in gradients:
        gradient.fill_(7)
    ddl.shutdown()
    assert all((gradient == 7).all() for gradient in gradients), "a dead rank has written"
    del model
    gradients.clear()
    dist.init_process_group("ddl", store=dist.HashStore(), rank=0, world_size=1)
    model = DistributedDataParallel(Network(), gradient_as_bucket_view=True)
    train(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    for name in sys.argv[1:]:
        {"training": training, "as_before": as_before, "loader": loader, "death": death}[name]()
        print(f"done {name}")
