"""Run by test_torch_api on any number of ranks: what ddl_torch itself offers."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn

import ddl_core
import ddl_torch as ddl
from ddl_core.errors import InvalidArgument, InvalidState


def refused(error: type[Exception], text: str, function, *arguments, **options) -> None:
    try:
        function(*arguments, **options)
    except error as raised:
        assert text in str(raised), raised
    else:
        raise AssertionError(f"{text!r} was not raised")


refused(InvalidState, "call ddl_torch.init() first", ddl.rank)
refused(InvalidState, "call ddl_torch.init() first", ddl.allreduce, torch.ones(1))
refused(InvalidArgument, "timeout: -1", ddl.init, timeout=-1)
ddl.shutdown()

ddl.init(timeout=60)
rank, size = ddl.rank(), ddl.size()
total = size * (size + 1) / 2
assert (rank, size) == (dist.get_rank(), dist.get_world_size())
assert (ddl.local_rank(), ddl.local_size()) == (rank, size)
assert dist.get_backend() == "ddl"
assert not ddl_core.is_initialized()  # the way in is closed again
refused(InvalidState, f"initialised already, as rank {rank} of {size}", ddl.init)

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
assert not ddl.allreduce(parameter).requires_grad
assert ddl.allreduce(parameter).shape == ()
refused(InvalidArgument, "op: 'mean' is none of sum, average", ddl.allreduce, ones, op="mean")
refused(InvalidArgument, "out: has shape (3,)", ddl.allreduce, ones, out=torch.ones(3))
refused(TypeError, "QInt8", ddl.allreduce, torch.quantize_per_tensor(torch.ones(3), 1, 0, torch.qint8))

value = torch.tensor([rank, rank])
assert ddl.broadcast(value, size - 1).tolist() == [size - 1] * 2
assert value.tolist() == [rank, rank]
refused(InvalidArgument, f"root: {size} is not a rank", ddl.broadcast, value, size)
refused(InvalidArgument, "root: -1 is not a rank", ddl.broadcast, value, -1)

assert ddl.allgather(torch.tensor(rank)).tolist() == list(range(size))
gathered = ddl.allgather(torch.full((2, 3), rank))
assert gathered.shape == (2 * size, 3)
assert gathered[:, 0].tolist() == [of for of in range(size) for _ in range(2)]
assert ddl.allgather(torch.empty(0, 3)).shape == (0, 3)
assert ddl.allgather(torch.tensor([rank == 0])).tolist() == [of == 0 for of in range(size)]
ddl.barrier()

works = [
    ddl.allreduce_async(torch.full((3,), rank + 1.0)),
    ddl.broadcast_async(torch.full((3,), float(rank)), size - 1),
    ddl.allgather_async(torch.tensor(rank)),
]
assert works[2].wait().tolist() == list(range(size))
assert works[1].wait(timeout=10).tolist() == [size - 1.0] * 3
assert works[0].wait().tolist() == [total] * 3
assert works[0].wait().tolist() == [total] * 3
assert all(work.done() for work in works)
barrier = ddl.barrier_async()
assert barrier.wait() is None
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

# ---- leaving and coming back, and torch.distributed on its own ----

ddl.shutdown()
ddl.shutdown()
assert not ddl.is_initialized() and not dist.is_initialized()
refused(InvalidState, "call ddl_torch.init() first", ddl.size)
ddl.init()
assert ddl.allreduce(torch.ones(1)).item() == size
dist.destroy_process_group()
assert not ddl.is_initialized()

world = ddl_core.init()
ddl.init()  # through the world that is there
assert ddl.allreduce(torch.ones(1)).item() == size
assert ddl_core.world() is world and not world.closed
ddl.shutdown()
if "MASTER_ADDR" in __import__("os").environ:
    dist.init_process_group("ddl")
    ddl.init()
    assert ddl.size() == size and ddl.allreduce(torch.ones(1)).item() == size
    ddl.shutdown()
    assert dist.is_initialized()  # it was not ours
    dist.destroy_process_group()
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
refused(InvalidState, "initialised already, with the backend gloo", ddl.init)
dist.destroy_process_group()

# ---- one library ----

with open("/proc/self/maps") as maps:
    libraries = {line.split()[-1] for line in maps if "libddl.so" in line}
assert libraries == {ddl_core.library_path()}, libraries
ddl_core.finalize()
print("done", file=sys.stdout, flush=True)
