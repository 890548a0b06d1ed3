# SPDX-License-Identifier: Apache-2.0
"""A rank of a replica group that trains under torchft's Manager over "ddl", until it is killed.

Usage: torchft_training.py KIND FOLDER REPLICA RANK SIZE PORT, with TORCHFT_LIGHTHOUSE set.

KIND is ddp, localsgd, diloco or hsdp. SIZE is the number of ranks of the replica group. The test
serves the group's store at PORT. A line of FOLDER/commits is "REPLICA RANK STEP MEMBERS DIGEST":
the committed step, the number of replica groups in it, and a digest of the weights after it.
"""

import hashlib
import os
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, init_device_mesh
from torchft import Manager, Optimizer
from torchft.local_sgd import DiLoCo, LocalSGD
from torchft.process_group import ManagedProcessGroup

from ddl_torch.torchft import ProcessGroupDDL

SYNC_EVERY = 2
STEP = 0.02  # minimum seconds of a step, so that other groups can join


class Replica:
    """The model, its optimizer and the manager of one rank."""

    def __init__(self, kind: str, folder: Path, replica: int, rank: int, size: int, port: int):
        self.kind, self.replica, self.rank = kind, replica, rank
        self.log = os.open(folder / "commits", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        torch.manual_seed(1)
        self.model: nn.Module = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
        self.works: list[Any] = []
        self.group = ProcessGroupDDL(timeout=timedelta(seconds=30))
        if kind == "hsdp":
            store = dist.TCPStore("127.0.0.1", port, is_master=False)
            own = dist.PrefixStore("shards", store)
            dist.init_process_group("ddl", store=own, rank=rank, world_size=size)
            fully_shard(self.model, mesh=init_device_mesh("cpu", (size,)))
        # FSDP replaces the model's parameters while it computes, when another thread may save.
        self.parameters = list(self.model.parameters())
        self.plain = torch.optim.SGD(self.parameters, lr=0.05, momentum=0.9)
        self.manager = Manager(
            pg=self.group,
            load_state_dict=self.load,
            state_dict=self.save,
            min_replica_size=1,
            use_async_quorum=kind != "diloco",
            timeout=timedelta(seconds=30),
            heartbeat_interval=timedelta(milliseconds=50),
            rank=rank,
            world_size=size,
            store_addr="127.0.0.1",
            store_port=port,
            replica_id=f"replica{replica}_",
            hostname="127.0.0.1",
        )

    def weights(self) -> Iterator[Tensor]:
        for value in self.parameters:
            yield (value.to_local() if isinstance(value, DTensor) else value).detach()

    def save(self) -> dict[str, Any]:
        momenta = [self.plain.state[p].get("momentum_buffer") for p in self.parameters]
        plain = [m.to_local() if isinstance(m, DTensor) else m for m in momenta]
        return {"weights": [w.clone() for w in self.weights()], "momenta": plain}

    def load(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            for own, other in zip(self.weights(), state["weights"], strict=True):
                own.copy_(other)
            for parameter, momentum in zip(self.parameters, state["momenta"], strict=True):
                if momentum is not None:
                    if isinstance(parameter, DTensor):
                        momentum = DTensor.from_local(
                            momentum, parameter.device_mesh, parameter.placements
                        )
                    self.plain.state[parameter]["momentum_buffer"] = momentum

    def commit(self) -> None:
        digest = hashlib.sha256()
        for value in self.weights():
            digest.update(value.contiguous().numpy().tobytes())
        fields = (self.replica, self.rank, self.manager.current_step())
        line = (*fields, self.manager.num_participants(), digest.hexdigest()[:16])
        os.write(self.log, (" ".join(str(each) for each in line) + "\n").encode())

    def average(self, parameter: Tensor) -> None:
        """Start the average of a gradient. DistributedDataParallel of torchft 0.2.0 asserts after a
        failed all-reduce, and PureDistributedDataParallel does not wait for the averages."""
        assert parameter.grad is not None
        self.works.append(self.manager.allreduce(parameter.grad))

    def loss(self) -> Tensor:
        time.sleep(STEP)
        seed = self.manager.current_step() * 1000 + self.replica * 10 + self.rank
        samples = torch.randn(8, 16, generator=torch.Generator().manual_seed(seed))
        return (self.model(samples) - samples[:, :4].sin()).square().mean()

    def train(self) -> None:
        optimizer: Any = self.plain
        if self.kind == "ddp":
            optimizer = None
            for parameter in self.model.parameters():
                parameter.register_post_accumulate_grad_hook(self.average)
        if self.kind == "hsdp":
            replicate, optimizer = ManagedProcessGroup(self.manager), None

            def average(output: Tensor) -> None:
                dist.all_reduce(output, group=replicate, op=dist.ReduceOp.AVG)

            for module in self.model.modules():
                if isinstance(module, FSDPModule):
                    module.set_all_reduce_hook(average)
        if optimizer is None:
            optimizer = Optimizer(self.manager, self.plain)
        with self.synchronized():
            while True:
                before = self.manager.current_step()
                optimizer.zero_grad()
                self.loss().backward()
                for work in self.works:
                    work.wait()
                self.works.clear()
                optimizer.step()
                if self.manager.current_step() > before:
                    self.commit()

    def synchronized(self) -> Any:
        """Return the context of the algorithms that synchronize every other step."""
        if self.kind == "localsgd":
            return LocalSGD(self.manager, self.model, self.plain, sync_every=SYNC_EVERY)
        if self.kind == "diloco":
            outer = torch.optim.SGD(self.model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
            return DiLoCo(
                self.manager, [self.model], self.plain, outer, SYNC_EVERY, pin_memory=False
            )
        return nullcontext()


if __name__ == "__main__":
    torch.set_num_threads(1)
    kind, folder, *numbers = sys.argv[1:]
    Replica(kind, Path(folder), *(int(each) for each in numbers)).train()
