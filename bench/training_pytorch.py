# SPDX-License-Identifier: Apache-2.0
"""One rank of bench/training.py for PyTorch: DistributedDataParallel with each backend in turn."""

import copy
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

# Searched after the installed ddl_core.
sys.path.append(str(Path(__file__).resolve().parent.parent))
sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))

from gpt_text import BYTES, Transformer
from resnet import ResNet

from bench.torch_device import backend_of_ddl, synchronize
from bench.training import ALONE, SHARED, Job, Measured
from ddl_torch import _build, shared_memory

ROUNDING = 1e-3  # largest difference between the backends' weights after the warm-up
WARM_UP = 3  # steps; DistributedDataParallel rebuilds its buckets after the first one
CLASSES = 1000
IMAGES, PIXELS = 8, 64
PIECES, CONTEXT = 4, 64

Step = Callable[[], object]


@dataclass(frozen=True)
class Task:
    model: nn.Module
    loss: Callable[[nn.Module], Tensor]


def resnet50() -> Task:
    images = torch.randn(IMAGES, 3, PIXELS, PIXELS).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(CLASSES, (IMAGES,))
    model = ResNet("resnet50", CLASSES).to(memory_format=torch.channels_last)  # 25.6 M parameters
    return Task(model, lambda model: cross_entropy(model(images), labels))


def transformer(width: int = 512, layers: int = 6) -> Task:
    text = torch.randint(BYTES, (PIECES, CONTEXT + 1))
    model = Transformer(width=width, layers=layers, context=CONTEXT)  # 19.2 M
    return Task(
        model, lambda model: cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    )


TASKS = {
    "resnet50": resnet50,
    "transformer": transformer,
    "small": lambda: transformer(width=64, layers=1),
}


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    torch.set_default_device(job.device)
    dist.init_process_group("gloo")
    own = backend_of_ddl(job.device)
    groups = {
        name: dist.new_group(backend=own if name in ("ddl", SHARED) else name)
        for name in job.backends
    }
    alone = [dist.new_group([rank], backend=own) for rank in range(dist.get_world_size())]
    groups[ALONE] = alone[dist.get_rank()]
    torch.manual_seed(dist.get_rank())
    measured = [measure(job, name, groups) for name in job.models]
    if dist.get_rank() == 0:
        Path(job.result).write_text(json.dumps([asdict(each) for each in measured]))
    dist.destroy_process_group()


def measure(job: Job, name: str, groups: dict[str, Any]) -> Measured:
    """Measure one model. `groups`: process groups of all ranks by backend, and under ALONE a group
    of this rank only."""
    task = TASKS[name]()
    models, steps = {}, {}
    for each, group in groups.items():
        share(each)
        models[each] = DistributedDataParallel(
            copy.deepcopy(task.model), process_group=group, gradient_as_bucket_view=True
        )
        steps[each] = step_of(models[each], task)
        for _ in range(WARM_UP):
            steps[each]()
    steps[ALONE] = in_step(steps[ALONE])
    ends = {each: weights(models[each].module) for each in job.backends}
    for backend, end in ends.items():
        difference = float((end - ends[job.backends[0]]).abs().max())
        if difference > ROUNDING:
            sys.exit(f"{name}: {backend} and {job.backends[0]} differ by {difference}")

    buckets = bucket_sizes(models[job.backends[0]])
    found = Measured(
        name,
        sum(parameter.numel() for parameter in task.model.parameters()),
        buckets,
        {each: [] for each in steps},
        {each: [] for each in steps},
        {each: [] for each in job.backends},
    )
    for number in range(job.rounds):
        names = list(steps)
        turn = number % len(names)
        for each in names[turn:] + names[:turn]:
            seconds, processor = timed(steps[each], job.steps)
            found.steps[each].append(seconds)
            found.processor[each].append(processor)
            if each in job.backends:
                share(each)
                exchange = exchange_of(buckets, groups[each])
                found.communication[each].append(timed(exchange, job.steps)[0])
    return found


def share(backend: str) -> None:
    shared_memory.ask(backend == SHARED)
    shared_memory.apply(_build.module())


def step_of(model: nn.Module, task: Task) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        task.loss(model).backward()
        optimizer.step()

    return step


def in_step(step: Step) -> Step:
    """Return the step with a barrier after it, since steps that communicate synchronize the ranks,
    too."""

    def both() -> None:
        step()
        dist.barrier()

    return both


def exchange_of(buckets: list[int], group: Any) -> Step:
    """Return a step that reduces gradients which are all available at its start."""
    device = torch.get_default_device()
    backend = group._get_backend(device)
    allocates = device.type == "cpu" and backend.supports_tensor_alloc(device)
    allocate = backend.allocate_tensor if allocates else torch.empty
    tensors = [allocate(size // 4, dtype=torch.float32, device=device) for size in buckets]

    def exchange() -> None:
        for tensor in tensors:
            tensor.fill_(1.0)  # the backward pass does this
        works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
        for work in works:
            work.wait()

    return exchange


def bucket_sizes(model: DistributedDataParallel) -> list[int]:
    sizes = model._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    return [int(size) for size in sizes.split(",")]


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def timed(step: Step, times: int) -> tuple[list[float], float]:
    step()
    synchronize()
    dist.barrier()
    seconds, processor = [], time.process_time()
    for _ in range(times):
        start = time.perf_counter()
        step()
        synchronize()
        seconds.append(time.perf_counter() - start)
    return seconds, (time.process_time() - processor) / times


if __name__ == "__main__":
    main()
