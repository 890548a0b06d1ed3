# SPDX-License-Identifier: Apache-2.0
"""Run by test_torch_packing on 2 or more ranks that are joined by TCP, so that each is a host:
training with Horovod's interface and gradients in a wire format of fewer bytes."""

import copy
import sys
from typing import Any

import torch
from checks import refused
from packing_task import STEPS, Task, flat, make
from torch import nn

import ddl_horovod.torch as hvd

hvd.init()
rank, size = hvd.rank(), hvd.size()
task = Task(rank, size)


class Training:
    def __init__(self, compression: Any, groups: int | None = None) -> None:
        self.model = make()
        self.optimizer = hvd.DistributedOptimizer(
            torch.optim.Adam(self.model.parameters(), lr=0.003),
            named_parameters=self.model.named_parameters(),
            compression=compression,
            groups=groups,
        )

    def run(self, steps: int) -> "Training":
        for _ in range(steps):
            self.optimizer.zero_grad()
            task.own_loss(self.model).backward()
            self.optimizer.step()
        every = hvd.allgather(flat(self.model)[None])
        assert all(torch.equal(each, every[0]) for each in every), "parameters differ"
        return self


exact, before = task.loss(Training(hvd.Compression.none).run(STEPS).model), task.loss(make())
for compression, groups in ((hvd.Compression.int8, None), (hvd.Compression.int4, 1)):
    training = Training(compression, groups).run(STEPS)
    lost = (task.loss(training.model) - exact) / (before - exact)
    print(f"{rank} {compression.wire}: {lost:.3%} of what f32 learns is lost", file=sys.stderr)
    assert abs(lost) < 0.01
    states = copy.deepcopy((training.model.state_dict(), training.optimizer.state_dict()))
    residuals = states[1]["ddl_residuals"]["residuals"]
    assert len(residuals) == 4 and max(float(each.abs().max()) for each in residuals.values()) > 0
    training.run(5)
    another = Training(compression, groups).run(1)
    another.model.load_state_dict(states[0])
    another.optimizer.load_state_dict(states[1])
    assert torch.equal(flat(another.run(5).model), flat(training.model))

# A rank that has joined takes part with zeros.
model = nn.Linear(128, 128)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=1), compression=hvd.Compression.int8
)
if rank > 0:
    model(torch.ones(1, 128)).sum().backward()
    optimizer.step()
hvd.join()

packed = {"compression": hvd.Compression.int8}
refused(ValueError, "only for the gradients", hvd.allreduce, task.inputs, **packed)
sgd = torch.optim.SGD(model.parameters(), lr=1)
refused(
    ValueError, "supports neither Adasum", hvd.DistributedOptimizer, sgd, op=hvd.Adasum, **packed
)
print("done")
hvd.shutdown()
