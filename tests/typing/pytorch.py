# SPDX-License-Identifier: Apache-2.0
"""ddl_torch and ddl_horovod.torch, as a user with a strict type checker writes them."""

from __future__ import annotations

import torch
from torch import Tensor

import ddl_horovod.torch as hvd
import ddl_torch as ddl

ddl.init()
x = torch.ones(4)
y: Tensor = ddl.allreduce(x, op="average")
ddl.allreduce(x, op="mean")  # type: ignore[arg-type]
work: ddl.Work[Tensor] = ddl.allreduce_async(x)
z: Tensor = work.wait(timeout=1.0)
together: list[Tensor] = ddl.grouped_allreduce([x, y])
model = torch.nn.Linear(4, 2)
optimizer: torch.optim.Optimizer = ddl.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), op="sum", compression="bf16"
)
ddl.DistributedOptimizer(optimizer, compression="fp8")  # type: ignore[arg-type]
ddl.DistributedOptimizer(optimizer, op="max")  # type: ignore[arg-type]
ddl.broadcast_parameters(model)
ranks: int = ddl.size() - ddl.rank() + ddl.local_rank() + ddl.local_size()
ddl.shutdown()

hvd.init()
reduced: Tensor = hvd.allreduce(x, op=hvd.Sum, compression=hvd.Compression.fp16)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.shutdown()
