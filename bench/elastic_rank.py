# SPDX-License-Identifier: Apache-2.0
"""One rank of `python -m bench elastic`: runs the same training steps in turns, elastic and not.

    elastic     ddl_torch.elastic.Job with a custom loop, with the whole cost of a step: reading and
                seeding of samples, shares, the ordered sum, the vote
    ddl, gloo   DistributedDataParallel over each backend, with DataLoader and DistributedSampler
    accumulate  on one rank: one process that accumulates the gradients of all shares

All read the same samples, and each has its own model and optimizer.
"""

import copy
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

# Searched after the installed ddl_core.
sys.path.append(str(Path(__file__).resolve().parent.parent))
sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))

from gpt_text import BYTES, Transformer

import ddl_core
import ddl_torch.elastic as elastic
from bench.elastic import Job, Measured

WARM_UP = 4  # steps
CONTEXT = 64
SEED = 1
PASSES = 1_000_000  # enough for more steps than are measured

Step = Callable[[], object]


class Pieces:
    """A data set of random text in memory, with the text that follows each byte."""

    def __init__(self, number: int) -> None:
        self._text = torch.randint(BYTES, (number, CONTEXT + 1))

    def __len__(self) -> int:
        return len(self._text)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._text[index, :-1], self._text[index, 1:]


def loss_of(model: nn.Module, text: Tensor, following: Tensor) -> Tensor:
    return cross_entropy(model(text).flatten(0, 1), following.flatten())


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def elastic_step(model: nn.Module, data: Pieces, comm: ddl_core.Comm, job: Job) -> Step:
    optimizer = make_optimizer(model)
    loop = elastic.Job(
        model, optimizer, batch=job.logical * job.share, logical=job.logical, seed=SEED, comm=comm
    )
    steps = loop.steps(data, passes=PASSES)
    # A step ends when the next one is requested, so the first one is begun here.
    current = [next(steps)]

    def step() -> None:
        for text, following in current[0]:
            current[0].backward(loss_of(model, text, following))
        optimizer.step()
        current[0] = next(steps)

    return step


def batches(loader: DataLoader[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    while True:
        yield from loader


def parallel_step(model: nn.Module, data: Pieces, group: Any, job: Job) -> Step:
    parallel = DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)
    optimizer = make_optimizer(model)
    sampler: Any = DistributedSampler(data, seed=SEED)  # type: ignore[arg-type, var-annotated]
    source = batches(DataLoader(data, batch_size=job.share, sampler=sampler, drop_last=True))  # type: ignore[arg-type]

    def step() -> None:
        optimizer.zero_grad()
        loss_of(parallel, *next(source)).backward()
        optimizer.step()

    return step


def accumulating_step(model: nn.Module, data: Pieces, job: Job) -> Step:
    optimizer = make_optimizer(model)
    source = batches(DataLoader(data, batch_size=job.share, shuffle=True, drop_last=True))  # type: ignore[arg-type]

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(job.logical):
            (loss_of(model, *next(source)) / job.logical).backward()
        optimizer.step()

    return step


@dataclass(frozen=True)
class Turn:
    seconds: float  # seconds of a step
    processor: float  # processor time of this process for a step


def timed(step: Step, times: int) -> Turn:
    dist.barrier()
    start, processor = time.perf_counter(), time.process_time()
    for _ in range(times):
        step()
    seconds = time.perf_counter() - start
    return Turn(seconds / times, (time.process_time() - processor) / times)


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    torch.manual_seed(SEED)
    dist.init_process_group("gloo")
    comm = ddl_core.init().duplicate()
    data = Pieces(4096)
    model = Transformer(width=job.width, layers=job.layers, context=CONTEXT)
    steps = {"elastic": elastic_step(copy.deepcopy(model), data, comm, job)}
    if dist.get_world_size() == 1:
        steps["accumulate"] = accumulating_step(copy.deepcopy(model), data, job)
    else:
        for name in ("ddl", "gloo"):
            group = dist.new_group(backend=name)
            steps[name] = parallel_step(copy.deepcopy(model), data, group, job)
    for step in steps.values():
        timed(step, WARM_UP)
    turns: dict[str, list[Turn]] = {name: [] for name in steps}
    names = list(steps)
    for number in range(job.pairs):
        for name in names if number % 2 else names[::-1]:
            turns[name].append(timed(steps[name], job.steps))
    if dist.get_rank() == 0:
        parameters = sum(each.numel() for each in model.parameters())
        seconds = {name: [turn.seconds for turn in each] for name, each in turns.items()}
        processor = {name: [turn.processor for turn in each] for name, each in turns.items()}
        Path(job.result).write_text(json.dumps(asdict(Measured(parameters, seconds, processor))))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
