# SPDX-License-Identifier: Apache-2.0
"""One process of `python -m bench recovery`: trains, and writes a line for each committed step.

    python recovery_rank.py SYSTEM FOLDER

With Ray it is the program that starts the training processes.

A line of FOLDER/commits is "SECONDS PID STEP", by the system's monotonic clock. It is written when
the process may continue with the next step and the new weights.
"""

import importlib
import os
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

SAMPLES, PIXELS, CLASSES = 4800, 16, 10
BATCH, LOGICAL = 96, 12
STEPS = 100_000
RANKS = 4
THREADS = 1
HEARTBEAT = timedelta(milliseconds=50)

Commit = Callable[[int], None]


class Samples:
    def __init__(self) -> None:
        torch.manual_seed(1)
        self.images = torch.randn(SAMPLES, 3, PIXELS, PIXELS)
        self.labels = torch.randint(CLASSES, (SAMPLES,))

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index], self.labels[index]

    def draw(self, step: int, rank: int, ranks: int) -> tuple[Tensor, Tensor]:
        chosen = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(step))
        part = chosen[:BATCH].chunk(ranks)[rank]
        return self.images[part], self.labels[part]


def make_model() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, CLASSES)),
    )


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def train_elastic(_folder: Path, commit: Commit) -> None:
    import ddl_torch.elastic as elastic

    model = make_model()
    optimizer = make_optimizer(model)
    job = elastic.Job(model, optimizer, batch=BATCH, logical=LOGICAL)
    for step in job.steps(Samples(), passes=STEPS):
        for images, labels in step:
            step.backward(cross_entropy(model(images), labels))
        optimizer.step()
        commit(step.number)


def train_torchrun(folder: Path, commit: Commit) -> None:
    """Train with DistributedDataParallel, with a checkpoint of each step, from which a restart
    continues."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model, data, first, file = make_model(), Samples(), 0, folder / "checkpoint"
    optimizer = make_optimizer(model)
    if file.exists():
        saved = torch.load(file)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"] + 1
    parallel = DistributedDataParallel(model)
    for step in range(first, STEPS):
        optimizer.zero_grad()
        images, labels = data.draw(step, rank, ranks)
        cross_entropy(parallel(images), labels).backward()
        optimizer.step()
        if rank == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, folder / "unfinished")
            (folder / "unfinished").rename(file)
        commit(step)


def run_ray(folder: Path) -> None:
    """Run Ray Train, whose processes do the same as torchrun's. It is restarted completely after a
    death."""
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    def train() -> None:
        torch.set_num_threads(THREADS)
        train_torchrun(folder, committer(folder))

    ray.init(num_cpus=RANKS, include_dashboard=False, log_to_driver=True)
    TorchTrainer(
        train,
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=RANKS),
        run_config=RunConfig(
            storage_path=str(folder / "ray"), failure_config=FailureConfig(max_failures=3)
        ),
    ).fit()


def train_horovod(_folder: Path, commit: Commit) -> None:
    """Train with Horovod Elastic: the survivors initialize again, and return to the last commit."""
    import horovod.torch as hvd

    hvd.init()
    model, data = make_model(), Samples()
    optimizer = hvd.DistributedOptimizer(make_optimizer(model), model.named_parameters())

    @hvd.elastic.run
    def train(state: Any) -> None:
        while state.step < STEPS:
            optimizer.zero_grad()
            images, labels = data.draw(state.step, hvd.rank(), hvd.size())
            cross_entropy(model(images), labels).backward()
            optimizer.step()
            state.step += 1
            state.commit()
            commit(state.step - 1)

    train(hvd.elastic.TorchState(model, optimizer, step=0))


def train_torchft(_folder: Path, commit: Commit, group: str = "torchft:ProcessGroupGloo") -> None:
    """Each process is a replica group of its own. group: MODULE:CLASS of its process group."""
    host = os.environ["OWN_HOST"]
    socket.gethostname = lambda: host  # the name that torchft sends to others

    import torch.distributed as dist
    from torchft import Manager, Optimizer

    number = int(os.environ["RANK"])
    module, name = group.split(":")
    store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
    model, data = make_model(), Samples()
    plain = make_optimizer(model)

    def load(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        plain.load_state_dict(state["optimizer"])

    def save() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": plain.state_dict()}

    manager = Manager(
        pg=getattr(importlib.import_module(module), name)(timeout=timedelta(seconds=10)),
        load_state_dict=load,
        state_dict=save,
        min_replica_size=1,
        timeout=timedelta(seconds=10),
        heartbeat_interval=HEARTBEAT,
        rank=0,
        world_size=1,
        store_addr=host,
        store_port=store.port,
        replica_id=f"replica{number}",
        hostname=host,
    )
    optimizer, works = Optimizer(manager, plain), []

    def average(parameter: Tensor) -> None:
        works.append(manager.allreduce(parameter.grad))

    # DistributedDataParallel of torchft 0.2.0 asserts after a failed all-reduce, and
    # PureDistributedDataParallel does not wait for the averages.
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(average)
    while True:
        optimizer.zero_grad()
        step = manager.current_step()
        images, labels = data.draw(step, number, int(os.environ["WORLD_SIZE"]))
        cross_entropy(model(images), labels).backward()
        for work in works:
            work.wait()
        works.clear()
        optimizer.step()
        if manager.current_step() > step:
            commit(step)


def committer(folder: Path) -> Commit:
    log = os.open(folder / "commits", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def commit(step: int) -> None:
        os.write(log, f"{time.monotonic()} {os.getpid()} {step}\n".encode())

    return commit


def main() -> None:
    system, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(THREADS)
    if system == "ray":
        run_ray(folder)
        return
    {
        "ddl_elastic": train_elastic,
        "torchrun": train_torchrun,
        "torchft": train_torchft,
        "torchft_ddl": partial(train_torchft, group="ddl_torch.torchft:ProcessGroupDDL"),
        "horovod": train_horovod,
    }[system](folder, committer(folder))


if __name__ == "__main__":
    main()
