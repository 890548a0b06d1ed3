# SPDX-License-Identifier: Apache-2.0
"""Run by test_torch_api on any number of ranks: the functions of ddl_torch itself."""

import copy
import pickle
import sys
import threading

import numpy as np
import torch
import torch.distributed as dist
from checks import refused
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import ddl_core
import ddl_torch as ddl
from ddl_core.errors import InvalidArgument, InvalidState

refused(InvalidState, "call ddl_torch.init() first", ddl.rank)
refused(InvalidArgument, "timeout is -1", ddl.init, timeout=-1)
ddl.shutdown()

ddl.init(timeout=60)
rank, size = ddl.rank(), ddl.size()
total = size * (size + 1) / 2
assert (rank, size) == (dist.get_rank(), dist.get_world_size())
assert (ddl.local_rank(), ddl.local_size()) == (rank, size)
assert dist.get_backend() == "ddl"
assert not ddl_core.is_initialized()  # the way in is closed again
refused(InvalidState, f"initialized already, as rank {rank} of {size}", ddl.init)

# ---- operations ----

ones = torch.full((2, 3), rank + 1.0)
result = ddl.allreduce(ones)
assert torch.equal(result, torch.full((2, 3), total)), result
assert torch.equal(ones, torch.full((2, 3), rank + 1.0))
assert torch.equal(ddl.allreduce(ones, op="average"), torch.full((2, 3), total / size))
assert torch.equal(ddl.allreduce(ones, op="max"), torch.full((2, 3), float(size)))
assert ddl.allreduce(ones, out=ones) is not None
assert torch.equal(ones, torch.full((2, 3), total))
out = torch.empty(3, 2).t()
ddl.allreduce(torch.full((2, 3), rank + 1.0), "min", out)
assert torch.equal(out, torch.ones(2, 3))
parameter = nn.Parameter(torch.tensor(float(rank)))
with torch.no_grad():
    assert not ddl.allreduce(parameter).requires_grad
assert ddl.allreduce(parameter).requires_grad
assert ddl.allreduce(parameter).shape == ()
refused(InvalidArgument, "out has shape (3,)", ddl.allreduce, ones, out=torch.ones(3))
refused(TypeError, "loat8_e4m3fnuz", ddl.allreduce, torch.ones(3).to(torch.float8_e4m3fnuz))

with FakeTensorMode():  # a tensor that pretends to be on a GPU
    on_gpu = torch.empty(size, device="cuda:0")
UNFIT = [
    (TypeError, np.ones(size), "has type numpy.ndarray; must be a torch.Tensor", "torch.as_tensor"),
    (TypeError, [1.0] * size, "has type builtins.list; must be a torch.Tensor", "torch.as_tensor"),
    (ValueError, torch.ones(size).to_sparse(), "layout torch.sparse_coo", "to_dense()"),
    (ValueError, torch.ones(size, 1).to_sparse_csr(), "layout torch.sparse_csr", "to_dense()"),
    (ValueError, torch.empty(size, device="meta"), "is on the device meta", "no values"),
    (ValueError, on_gpu, "is on the device cuda:0", ".cpu()"),
]
OPERATIONS = ["allreduce", "broadcast", "allgather", "reduce_scatter", "alltoall"]
for error, unfit, what, remedy in UNFIT:
    for name in OPERATIONS:
        for form in (getattr(ddl, name), getattr(ddl, f"{name}_async")):
            for text in ("tensor ", what, remedy):
                refused(error, text, form, unfit)
    refused(error, "tensors[1] ", ddl.grouped_allreduce, [ones, unfit])
    refused(error, what, ddl.grouped_allreduce, [ones, unfit])
    for name in OPERATIONS[:2]:
        refused(error, "out ", getattr(ddl, name), torch.ones(size), out=unfit)
    refused(error, "out ", ddl.reduce_scatter, torch.ones(size * size), out=unfit)
    refused(error, "out[0] ", ddl.grouped_allreduce, [torch.ones(size)], out=[unfit])
refused(TypeError, "tensors is one tensor; pass a list", ddl.grouped_allreduce, ones)
refused(TypeError, "out is one tensor; pass a list", ddl.grouped_allreduce, [ones], out=ones)

value = torch.tensor([rank, rank])
assert ddl.broadcast(value, size - 1).tolist() == [size - 1] * 2
assert value.tolist() == [rank, rank]
rows = [1 + of for of in range(size)]
gathered = ddl.allgather(torch.full((rank + 1, 2), rank), rows)
assert gathered[:, 1].tolist() == [of for of in range(size) for _ in range(of + 1)]
refused(
    InvalidArgument,
    f"rows is {rank + 1} for this rank, but its tensor has 9",
    ddl.allgather,
    torch.ones(9),
    rows,
)
refused(InvalidArgument, "must have one number for each of", ddl.allgather, torch.ones(9), [9] * 9)

several = [torch.full((count,), rank + 1.0) for count in (1, 0, 70_000)]
assert ddl.grouped_allreduce(several, "average", out=several)[2][-1] == total / size
assert several[0].item() == several[2][0].item() == total / size
assert ddl.grouped_allreduce([]) == []
empty = ddl.grouped_allreduce_async([])
assert empty.done() and empty.future().wait() == []
refused(
    InvalidArgument,
    "out has 1 tensors, but there are 3",
    ddl.grouped_allreduce,
    several,
    out=[torch.ones(1)],
)

part = ddl.reduce_scatter(torch.arange(2.0 * size).view(2 * size, 1).expand(-1, 3))
assert part.tolist() == [[2.0 * rank * size] * 3, [(2.0 * rank + 1) * size] * 3]
out = torch.zeros(2)
assert (
    ddl.reduce_scatter(torch.full((2 * size,), rank + 1), "max", torch.zeros(2, dtype=int)).tolist()
    == [size] * 2
)
ddl.reduce_scatter(torch.ones(2 * size), "average", out)
assert out.tolist() == [1, 1]
refused(
    InvalidArgument,
    "out has shape (3,)",
    ddl.reduce_scatter,
    torch.ones(2 * size),
    out=torch.ones(3),
)
rows = torch.arange(size).repeat_interleave(torch.arange(size))  # r rows of value r for each rank r
assert ddl.alltoall(rows, list(range(size))).tolist() == [rank] * (rank * size)
known = ddl.alltoall(rows, list(range(size)), [rank] * size)
assert known.tolist() == [rank] * (rank * size)
refused(InvalidArgument, "sent_rows has the sum", ddl.alltoall, torch.ones(5 * size), [1] * size)

assert ddl.broadcast_object({"from": rank}, size - 1) == {"from": size - 1}
assert ddl.allgather_object("x" * rank) == ["x" * of for of in range(size)]
refused(InvalidArgument, "root is -1; must be", ddl.broadcast_object, 1, -1)
assert ddl.broadcast_object((lambda x: x + 1) if rank == 0 else None)(1) == 2
what, lock = f"the object of rank {size - 1} cannot be pickled", threading.Lock()
last = lock if rank == size - 1 else None
refused(TypeError, what, ddl.broadcast_object, last, size - 1)
refused(TypeError, what, ddl.allgather_object, last)

work = ddl.broadcast_async(torch.full((3,), float(rank)), size - 1)
assert work.wait(timeout=10).tolist() == [size - 1.0] * 3
double = ddl.allreduce_async(torch.ones(2)).future().then(lambda f: f.value()[0] * 2)
assert double.wait().tolist() == [2.0 * size] * 2

# ---- parameters ----

torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
ddl.broadcast_parameters(model, root=size - 1)
torch.manual_seed(size - 1)
same = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
for name, tensor in same.state_dict().items():
    assert torch.equal(tensor, model.state_dict()[name]), name
state = {"weights": torch.full((2, 2), rank).t(), "epoch": 3 + rank}
ddl.broadcast_parameters(state)
assert state["weights"].sum() == 0
assert state["epoch"] == 3 + rank

# ---- optimizers ----

# Steps that are skipped, by loss scaling and by the program.
model = nn.Linear(2, 1, bias=False)
nn.init.ones_(model.weight)
optimizer = ddl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
for step in range(3):
    optimizer.zero_grad()
    factor = torch.inf if step == 1 and rank == 0 else 1.0
    scaler.scale(model(torch.full((1, 2), factor)).sum()).backward()
    optimizer.synchronize()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
assert model.weight.tolist() == [[-1.0, -1.0]]
for step in range(3):
    optimizer.zero_grad()
    model(torch.ones(1, 2) * step).sum().backward()
    optimizer.synchronize()
    if nn.utils.get_total_norm([model.weight.grad]) > 2:
        continue
    optimizer.step()
assert model.weight.tolist() == [[-2.0, -2.0]]

# Parameters that are added or trained later, and another optimizer for the same ones.
parts = [nn.Parameter(torch.ones(1)) for _ in range(3)]
parts[1].requires_grad_(False)
optimizer = ddl.DistributedOptimizer(torch.optim.SGD(parts[:2], lr=1.0), op="sum")
for step in range(2):
    if step == 1:
        parts[1].requires_grad_(True)
        optimizer.add_param_group({"params": parts[2:]})
    for _ in range(2):
        optimizer.zero_grad()
        sum(each * (rank + 1) for each in parts).backward()
        optimizer.step()
total = size * (size + 1) / 2
assert [each.item() for each in parts] == [1 - 4 * total, 1 - 2 * total, 1 - 2 * total]
ddl.DistributedOptimizer(torch.optim.SGD(parts, lr=0.0))
again = ddl.DistributedOptimizer(torch.optim.SGD(parts, lr=1.0), op="sum")
for _ in range(2):
    again.zero_grad()
    sum(each * (rank + 1) for each in parts).backward()
    again.step()
assert [each.item() for each in parts] == [1 - 6 * total, 1 - 4 * total, 1 - 4 * total]


class Derived(torch.optim.SGD):  # PyTorch calls the hooks of both classes
    def step(self, closure=None):
        return super().step(closure)


model = nn.Linear(1, 1, bias=False)
nn.init.ones_(model.weight)
optimizer = ddl.DistributedOptimizer(Derived(model.parameters(), lr=1.0), op="sum")
model(torch.ones(1, 1)).sum().backward()
optimizer.step()
assert model.weight.item() == 1 - size

# A copy would use its own gradients in its steps.
for copied in (copy.copy, copy.deepcopy, pickle.dumps):
    refused(TypeError, "cannot be copied or pickled", copied, optimizer)

# ---- leaving and joining again, and torch.distributed without ddl_torch ----

ddl.shutdown()
ddl.shutdown()
assert not ddl.is_initialized() and not dist.is_initialized()
refused(InvalidState, "call ddl_torch.init() first", ddl.size)
ddl.init()
assert ddl.allreduce(torch.ones(1)).item() == size
dist.destroy_process_group()
assert not ddl.is_initialized()

world = ddl_core.init()
ddl.init()  # uses the existing world
assert ddl.allreduce(torch.ones(1)).item() == size
assert ddl_core.world() is world and not world.closed
ddl.shutdown()
if "MASTER_ADDR" in __import__("os").environ:
    dist.init_process_group("ddl")
    ddl.init()
    assert ddl.size() == size and ddl.allreduce(torch.ones(1)).item() == size
    ddl.shutdown()
    assert dist.is_initialized()  # the program created it
    dist.destroy_process_group()
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
refused(InvalidState, "initialized already, with the backend gloo", ddl.init)
dist.destroy_process_group()

# ---- one library ----

with open("/proc/self/maps") as maps:
    libraries = {line.split()[-1] for line in maps if "libddl.so" in line}
assert libraries == {ddl_core.library_path()}, libraries
ddl_core.finalize()
print("done", file=sys.stdout, flush=True)
