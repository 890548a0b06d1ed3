# SPDX-License-Identifier: Apache-2.0
"""Run by test_torch_packing on 2 or more ranks that are joined by TCP, so that each is a host:
training with fully_shard and gradients in a wire format of fewer bytes."""

import copy
import sys
import warnings
from typing import Any

import torch
from checks import refused
from packing_task import STEPS, Task, make
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import ddl_torch as ddl
from ddl_core.errors import InvalidArgument

ddl.init()
rank, size = ddl.rank(), ddl.size()
task = Task(rank, size)
mesh = init_device_mesh("cpu", (size,))


class Training:
    def __init__(self, compression: Any) -> None:
        self.model = make()
        fully_shard(self.model[0], mesh=mesh)  # type: ignore[index]
        fully_shard(self.model, mesh=mesh)
        if compression:
            self.compression = ddl.compress_gradients(self.model, compression)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.003)

    def run(self, steps: int) -> "Training":
        for _ in range(steps):
            self.optimizer.zero_grad()
            task.own_loss(self.model).backward()
            self.optimizer.step()
        return self

    def shards(self) -> torch.Tensor:
        return torch.cat([each.to_local().detach().flatten() for each in self.model.parameters()])  # type: ignore[operator]


before, exact = task.loss(make()), task.loss(Training(None).run(STEPS).model)
for compression in ("int8", "int4"):
    training = Training(compression).run(STEPS)
    lost = (task.loss(training.model) - exact) / (before - exact)
    print(f"{rank} {compression}: {lost:.3%} of what f32 learns is lost", file=sys.stderr)
    assert abs(lost) < (0.001 if compression == "int8" else 0.01)
    residuals = training.compression.state_dict()["residuals"]
    assert set(residuals) == {"", "0"} and residuals["0"].numel() >= 64 * 128 + 128
    assert all(each.abs().max() > 0 for each in residuals.values())

    parts = (training.model, training.optimizer, training.compression)
    saved = copy.deepcopy([part.state_dict() for part in parts])
    longer = training.run(5).shards()
    for with_residuals in (True, False):
        another = Training(compression)
        another.model.load_state_dict(copy.deepcopy(saved[0]))
        another.optimizer.load_state_dict(copy.deepcopy(saved[1]))
        if with_residuals:
            another.compression.load_state_dict(saved[2])
        assert torch.equal(another.run(5).shards(), longer) == with_residuals
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        another.compression.load_state_dict(saved[2] | {"rank": rank + 1})
    assert "they begin with zeros" in str(caught[0].message), caught
    assert not another.compression.state_dict()["residuals"]

# Gradients of float64 are sent as they are.
model = nn.Linear(128, 128).double()
fully_shard(model, mesh=mesh)
assert not ddl.compress_gradients(model, "int4").state_dict()["residuals"]
model(torch.ones(1, 128, dtype=torch.float64)).sum().backward()

training.model.set_gradient_divide_factor(7.0)  # type: ignore[operator]
refused(InvalidArgument, "set_gradient_divide_factor", training.run, 1)
print("done")
ddl.shutdown()
