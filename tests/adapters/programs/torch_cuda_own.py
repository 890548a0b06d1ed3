# SPDX-License-Identifier: Apache-2.0
"""ddl_torch's own functions on tensors of a GPU, or its stand-in: the results are those on the CPU.

python torch_cuda_own.py FOLDER   of PyTorch's stand-in; "": this machine's GPU
"""

import sys
from collections.abc import Callable
from typing import Any

import torch_cuda_device

device = torch_cuda_device.install(sys.argv[1])

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import Tensor  # noqa: E402

import ddl_torch as ddl  # noqa: E402

ddl.init(timeout=60)
assert dist.get_backend_config() == "cpu:ddl,cuda:ddl", dist.get_backend_config()
rank, size = ddl.rank(), ddl.size()
compared = 0


def compare(call: Callable[[Tensor], Any], *shape: int) -> None:
    global compared
    values = torch.arange(float(torch.Size(shape).numel())).reshape(shape) * 2 + rank
    found = []
    for where in ("cpu", "cuda"):
        given = values.clone().to(where).requires_grad_()
        results = call(given)
        results = results if isinstance(results, (list, tuple)) else [results]
        assert all(result.device.type == where for result in results), where
        torch.stack([result.square().sum() for result in results]).sum().backward()
        assert given.grad is not None
        found.append([each.detach().cpu() for each in (*results, given.grad)])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other), (one, other)
        compared += 1


compare(ddl.allreduce, 5)
compare(lambda tensor: ddl.allreduce(tensor, "average"), 300, 300)
compare(lambda tensor: ddl.grouped_allreduce([tensor, tensor * 2]), 7)
compare(lambda tensor: ddl.allreduce_async(tensor).wait(), 4)
compare(lambda tensor: ddl.broadcast(tensor, size - 1), 5)
compare(ddl.allgather, 3, 2)
compare(lambda tensor: ddl.allgather(tensor[: rank + 1], list(range(1, size + 1))), size, 2)
compare(ddl.reduce_scatter, 2 * size, 3)
compare(ddl.alltoall, 2 * size, 3)
ddl.barrier()

torch.manual_seed(rank)
model = torch.nn.Linear(3, 2).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (rank + 1), momentum=0.9)
model(torch.ones(4, 3, device="cuda")).sum().backward()
if rank == 0:
    optimizer.step()
ddl.broadcast_parameters(model)
ddl.broadcast_optimizer_state(optimizer)
state = [model.weight, *(each["momentum_buffer"] for each in optimizer.state.values())]
for tensor in state:
    assert tensor.device.type == "cuda"
    gathered = ddl.allgather(tensor.detach().reshape(1, -1))
    assert torch.equal(gathered, gathered[:1].expand(size, -1))
    compared += 1
assert optimizer.param_groups[0]["lr"] == 0.1

print(f"compared {compared}")
ddl.shutdown()
