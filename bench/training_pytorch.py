# SPDX-License-Identifier: Apache-2.0
"""One rank of bench/training.py for PyTorch: DistributedDataParallel with each backend in turn."""

import copy
import itertools
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
from torch.utils.data import DataLoader, IterableDataset

# Searched after the installed ddl_core.
sys.path.append(str(Path(__file__).resolve().parent.parent))
sys.path.append(str(Path(__file__).resolve().parent.parent / "examples"))

from gpt_text import BYTES, Transformer
from resnet import ResNet

from bench.torch_device import backend_of_ddl, synchronize
from bench.training import ALONE, PRIVATE, Job, Measured
from ddl_torch import _build, shared_memory

ROUNDING = 1e-3  # largest difference between the backends' weights after the warm-up
WARM_UP = 3  # steps; DistributedDataParallel rebuilds its buckets after the first one
CLASSES = 1000
BORDER = 8  # pixels that a random crop removes
STORED = 256  # images or texts of a data set

Step = Callable[[], object]
Batch = tuple[Tensor, Tensor]  # inputs and what the model should return


class Images(IterableDataset[Batch]):
    """Random crops of random images, endlessly."""

    def __init__(self, pixels: int) -> None:
        self.pixels = pixels
        width = pixels + BORDER
        self.images = torch.randint(256, (STORED, 3, width, width), dtype=torch.uint8)
        self.labels = torch.randint(CLASSES, (STORED,))

    def __iter__(self) -> Iterator[Batch]:
        while True:
            image, left, top = (int(torch.randint(most, ())) for most in (STORED, BORDER, BORDER))
            rows, columns = slice(top, top + self.pixels), slice(left, left + self.pixels)
            crop = self.images[image, :, rows, columns].float() / 128 - 1
            yield crop, self.labels[image]


class Texts(IterableDataset[Batch]):
    """Pieces of a random text, endlessly. Each comes with the byte that follows each of its own."""

    def __init__(self, context: int) -> None:
        self.context = context
        self.text = torch.randint(BYTES, (STORED * context,))

    def __iter__(self) -> Iterator[Batch]:
        while True:
            start = int(torch.randint(len(self.text) - self.context, ()))
            piece = self.text[start : start + self.context + 1]
            yield piece[:-1], piece[1:]


@dataclass(frozen=True)
class Task:
    model: nn.Module
    data: IterableDataset[Batch]
    batch: int

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs, wanted = batch
        if inputs.dim() == 4:  # images
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        found = model(inputs)
        return cross_entropy(found.flatten(0, -2), wanted.flatten())

    def batches(self, loaders: int = 0) -> Iterator[Batch]:
        """Return the batches of a data loader with so many forked workers, or one batch again and
        again."""
        if not loaders:
            return itertools.repeat(next(iter(DataLoader(self.data, self.batch))))
        context = "fork"
        loader = DataLoader(
            self.data, self.batch, num_workers=loaders, multiprocessing_context=context
        )
        return iter(loader)


def resnet50(job: Job) -> Task:
    model = ResNet("resnet50", CLASSES).to(memory_format=torch.channels_last)  # 25.6 M parameters
    return Task(model, Images(job.pixels), job.images)


def transformer(job: Job, width: int = 512, layers: int = 6) -> Task:
    model = Transformer(width=width, layers=layers, context=job.context)  # 19.2 M
    return Task(model, Texts(job.context), job.sequences)


TASKS = {
    "resnet50": resnet50,
    "transformer": transformer,
    "small": lambda job: transformer(job, width=64, layers=1),
}


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    torch.set_default_device(job.device)
    dist.init_process_group("gloo")
    own = backend_of_ddl(job.device)
    groups = {
        name: dist.new_group(backend=own if name in ("ddl", PRIVATE) else name)
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
    task = TASKS[name](job)
    batch = task.batches()
    models, steps = {}, {}
    for each, group in groups.items():
        share(each)
        models[each] = DistributedDataParallel(
            copy.deepcopy(task.model), process_group=group, gradient_as_bucket_view=True
        )
        steps[each] = step_of(models[each], task, batch)
        for _ in range(WARM_UP):
            steps[each]()
    ends = {each: weights(models[each].module) for each in job.backends}
    for backend, end in ends.items():
        difference = float((end - ends[job.backends[0]]).abs().max())
        if difference > ROUNDING:
            sys.exit(f"{name}: {backend} and {job.backends[0]} differ by {difference}")
    if job.loaders:  # forked now, when the buckets of DistributedDataParallel are there
        steps = {each: step_of(models[each], task, task.batches(job.loaders)) for each in groups}
    steps[ALONE] = in_step(steps[ALONE])

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
    shared_memory.ask(False if backend == PRIVATE else None)
    shared_memory.apply(_build.module())


def step_of(model: nn.Module, task: Task, batches: Iterator[Batch]) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        task.loss(model, next(batches)).backward()
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
