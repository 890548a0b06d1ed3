# SPDX-License-Identifier: Apache-2.0
"""Run by test_torch_training on two or more ranks: DistributedDataParallel and its hooks, compared
with training on the whole batch in one process."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("ddl")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)  # DDP must give all ranks the weights of rank 0

STEPS, BATCH = 6, 4 * size
data = torch.Generator().manual_seed(3)
images = torch.randn(STEPS, BATCH, 20, generator=data)
labels = torch.randint(5, (STEPS, BATCH), generator=data)


class Network(nn.Module):
    def __init__(self, width: int = 64, unused: bool = False) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(20, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 5)
        )
        self.unused = nn.Linear(3, 3) if unused else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def train(model: nn.Module, rows: slice, dtype: torch.dtype = torch.float32) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        output = model(images[step, rows].to(dtype))
        output = output.float() if dtype == torch.bfloat16 else output
        loss = cross_entropy(output, labels[step, rows])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def bits(model: nn.Module) -> torch.Tensor:
    flat = torch.cat([p.detach().double().flatten() for p in model.parameters()])
    everyones = [torch.empty_like(flat) for _ in range(size)]
    dist.all_gather(everyones, flat)
    for of, other in enumerate(everyones):
        assert torch.equal(other, flat), f"the weights of ranks {rank} and {of} differ"
    return flat


def check(
    what: str, tolerance: float, hook=None, dtype=torch.float32, width=64, unused=False, **options
) -> None:
    model = Network(width, unused).to(dtype)
    shared = DistributedDataParallel(model, **options)
    alone = copy.deepcopy(model)
    if hook:
        shared.register_comm_hook(*hook)
    train(shared, slice(rank, None, size), dtype)
    train(alone, slice(None), dtype)
    wanted = torch.cat([p.detach().double().flatten() for p in alone.parameters()])
    difference = (bits(shared) - wanted).abs().max().item()
    assert difference <= tolerance, f"{what}: differs by {difference}"
    if rank == 0:
        print(f"{what}: {difference:.1e}")


check("plain", 1e-5)
check("float64", 1e-12, dtype=torch.float64)
check("bfloat16", 0.05, dtype=torch.bfloat16)
check("several buckets", 1e-5, width=300, bucket_cap_mb=0.1)
check("unused parameters", 1e-5, unused=True, find_unused_parameters=True)
check("static graph", 1e-5, static_graph=True)
check("views", 1e-5, gradient_as_bucket_view=True)
check("allreduce_hook", 1e-5, hook=(None, default_hooks.allreduce_hook))
check("fp16_compress_hook", 0.01, hook=(None, default_hooks.fp16_compress_hook))

# The built-in hooks in C++ need futures with lists of tensors, which only C++ can create.
if type(dist.group.WORLD) is dist.ProcessGroup:
    builtin = Network()
    shared = DistributedDataParallel(builtin)
    shared._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    train(shared, slice(rank, None, size))
    bits(shared)

# Callbacks of the hook start further operations and wait for them.
compressed = DistributedDataParallel(Network())
state = powerSGD_hook.PowerSGDState(
    None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=0.5
)
compressed.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
losses = train(compressed, slice(rank, None, size))
bits(compressed)
assert state.iter >= 2 and state.p_memory_dict, "it did not compress"
assert all(loss == loss for loss in losses)
print("PowerSGD")

# Ranks with different numbers of steps.
uneven = DistributedDataParallel(Network())
optimizer = torch.optim.SGD(uneven.parameters(), lr=0.1)
with uneven.join():
    for step in range(2 + rank):
        optimizer.zero_grad()
        cross_entropy(uneven(images[step, rank::size]), labels[step, rank::size]).backward()
        optimizer.step()
bits(uneven)
print("join")

dist.destroy_process_group()
print("trained")
