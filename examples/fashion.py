# SPDX-License-Identifier: Apache-2.0
"""Train a small ResNet on the 70 000 images of Fashion-MNIST, on hosts with slow links.

    python examples/fashion.py                                     one process
    ddlrun -H a:1,b:1 python examples/fashion.py --method int4     two hosts
    DDL_LINKS=tcp ddlrun -n 2 examples/fashion.py --method int4    two ranks that count as hosts
    ddl elastic run -n 2 examples/fashion.py --method elastic      processes that may die

methods:
  f32, bf16, int8, int4   DistributedDataParallel; the gradients are sent in this format, int8 and
                          int4 with error feedback
  rounds                  rounds of local steps
  elastic                 elastic steps, whose result does not depend on the number of processes

Debian's package dataset-fashion-mnist has the images (MIT licence). --data is the folder of its
files. `python -m bench slow` compares the methods.
"""

from __future__ import annotations

import argparse
import gzip
import json
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.functional import cross_entropy, pad
from torch.nn.parallel import DistributedDataParallel

import ddl_torch as ddl
import ddl_torch.elastic as elastic

FOLDER = Path("/usr/share/datasets/fashion-mnist")  # of the package
MEAN, DEVIATION = 0.286, 0.353  # of the pixels
SIDE, BORDER = 28, 2  # pixels of an image, and of the border that random crops use
CLASSES = 10
BATCH = 256  # images of all processes in a step
RATE = 0.2  # the highest learning rate
PARALLEL = ("f32", "bf16", "int8", "int4")
METHODS = (*PARALLEL, "rounds", "elastic")

Batch = tuple[Tensor, Tensor]
# After each step or round: the steps so far, and whether this process reports the accuracy.
Progress = Iterator[tuple[int, bool]]


class Images:
    """The images of one part of the data set, as a data set of numbers. `augmented` and `plain`
    return the images of several numbers at once, with their labels."""

    def __init__(self, folder: Path, part: str) -> None:
        images = read(folder / f"{part}-images-idx3-ubyte.gz")
        self._padded = pad(images, (BORDER, BORDER, BORDER, BORDER))
        self._labels = read(folder / f"{part}-labels-idx1-ubyte.gz").long()

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, number: int) -> int:
        return number

    def augmented(self, numbers: Sequence[int] | Tensor) -> Batch:
        """Return random crops, every other one mirrored, of shape (number, 1, 28, 28), and their
        labels."""
        chosen = torch.as_tensor(numbers)
        shifts = torch.randint(2 * BORDER + 1, (2, len(chosen), 1))
        rows, columns = shifts + torch.arange(SIDE)
        mirrored = torch.rand(len(chosen), 1) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
        crops = self._padded[chosen[:, None, None], rows[:, :, None], columns[:, None, :]]
        return normalize(crops), self._labels[chosen]

    def plain(self) -> Iterator[Batch]:
        """Yield all images, in batches."""
        inner = slice(BORDER, BORDER + SIDE)
        for images, labels in zip(
            self._padded[:, inner, inner].split(BATCH), self._labels.split(BATCH), strict=True
        ):
            yield normalize(images), labels


def read(path: Path) -> Tensor:
    """Return the array of an idx file, as uint8. Exits if the file does not exist."""
    if not path.exists():
        sys.exit(
            f"{path} does not exist. On Debian, `apt-get download dataset-fashion-mnist` and"
            " `dpkg -x dataset-fashion-mnist_*.deb FOLDER` fetch it: then pass"
            f" --data FOLDER{FOLDER}"
        )
    data = bytearray(gzip.decompress(path.read_bytes()))
    begin = 4 + 4 * data[3]
    shape = struct.unpack(f">{data[3]}I", data[4:begin])
    return torch.frombuffer(data, dtype=torch.uint8, offset=begin).view(shape)


def normalize(images: Tensor) -> Tensor:
    return ((images.float() / 255 - MEAN) / DEVIATION).unsqueeze(1)


class Block(nn.Module):
    """Two convolutions and a shortcut. The first convolution has the stride."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.shortcut = nn.Sequential()
        if channels != out:
            shortcut = nn.Conv2d(channels, out, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(shortcut, nn.BatchNorm2d(out))

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.bn1(self.conv1(images)))
        return torch.relu(self.bn2(self.conv2(hidden)) + self.shortcut(images))


def resnet8(width: int, seed: int) -> nn.Sequential:
    """Return a ResNet-8 whose blocks have `width`, 2 * `width` and 4 * `width` channels. Its first
    convolution has stride 2."""
    torch.manual_seed(seed)
    network = nn.Sequential(
        nn.Conv2d(1, width, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        Block(width, width, 1),
        Block(width, 2 * width, 2),
        Block(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, CLASSES),
    )
    return network.to(memory_format=torch.channels_last)  # a sixth faster


def make_optimizer(network: nn.Module) -> torch.optim.Optimizer:
    options: dict[str, Any] = {"momentum": 0.9, "nesterov": True, "weight_decay": 5e-4}
    return torch.optim.SGD(network.parameters(), lr=RATE, **options)


def set_rate(optimizer: torch.optim.Optimizer, step: int, steps: int) -> None:
    """Set the learning rate, which rises in the first tenth of the steps, and then falls to 0."""
    warm_up = max(1, steps // 10)
    part = min((step + 1) / warm_up, (steps - step) / (steps - warm_up + 1))
    optimizer.param_groups[0]["lr"] = RATE * max(0.0, part)


def parallel_steps(
    method: str,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    images: Images,
    steps: int,
    seed: int,
    group: Any = None,
) -> Progress:
    """Train with DistributedDataParallel on the ranks of a process group (None: all ranks)."""
    model = DistributedDataParallel(network, process_group=group)
    model.broadcast_buffers = False  # each rank has its own averages of batch norm
    if method == "bf16":
        # By its own name, PyTorch refuses this hook without NCCL.
        model.register_comm_hook(group, lambda own, bucket: bf16_compress_hook(own, bucket))
    elif method != "f32":
        ddl.compress_gradients(model, method)  # type: ignore[arg-type]
    rank, size = ddl.rank(), ddl.size()
    order = torch.Generator().manual_seed(seed)  # the same on all ranks
    torch.manual_seed(1000 * seed + rank)  # of the crops
    chosen: Iterator[Tensor] = iter(())
    for step in range(steps):
        if step % (len(images) // BATCH) == 0:
            chosen = iter(torch.randperm(len(images), generator=order).split(BATCH))
        inputs, labels = images.augmented(next(chosen)[rank::size])
        set_rate(optimizer, step, steps)
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        yield step + 1, rank == 0


def elastic_steps(
    job: elastic.Job,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    images: Images,
    steps: int,
) -> Progress:
    """Train with the steps of an elastic job."""
    for step in job.steps(images, steps=steps, collate=images.augmented):
        for inputs, labels in step:
            step.backward(cross_entropy(network(inputs), labels))
        set_rate(optimizer, step.number, steps)
        optimizer.step()
        yield step.number + 1, job.is_writer


def rounds(
    job: elastic.Job,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    images: Images,
    steps: int,
    local_steps: int,
    wire: str,
) -> Progress:
    """Train in rounds of local steps, after which the parameters are averaged."""
    average = torch.optim.SGD(network.parameters(), lr=1.0)
    options: dict[str, Any] = {"local_steps": local_steps, "outer": average, "wire": wire}
    number = -(-steps // local_steps)
    for each in job.rounds(images, rounds=number, collate=images.augmented, **options):
        for batches in each:
            for inputs, labels in batches:
                each.backward(cross_entropy(network(inputs), labels))
                set_rate(optimizer, each.local_step, steps)
                optimizer.step()
        yield (each.number + 1) * local_steps, job.is_writer


def accuracy(network: nn.Module, images: Images) -> float:
    """Return the percentage of the images whose class the network finds."""
    network.eval()
    with torch.no_grad():
        right = sum(int((network(x).argmax(1) == y).sum()) for x, y in images.plain())
    network.train()
    return 100 * right / len(images)


def main() -> None:
    arguments = parse()
    torch.set_num_threads(1)  # each process has a core
    images, held_out = (Images(arguments.data, part) for part in ("train", "t10k"))
    network = resnet8(arguments.width, arguments.seed)
    optimizer = make_optimizer(network)
    epoch = len(images) // BATCH
    steps = arguments.epochs * epoch
    training: dict[str, Any] = {"network": network, "optimizer": optimizer}
    training |= {"images": images, "steps": steps}
    job = None
    if arguments.method in PARALLEL:
        ddl.init()
        progress = parallel_steps(arguments.method, seed=arguments.seed, **training)
    else:
        job = elastic.Job(
            network, optimizer, batch=BATCH, logical=arguments.logical, seed=arguments.seed
        )
        if arguments.method == "rounds":
            options = {"local_steps": arguments.local_steps, "wire": arguments.wire}
            progress = rounds(job, **options, **training)
        else:
            progress = elastic_steps(job, **training)

    start, due = time.monotonic(), epoch
    curve: list[tuple[int, float]] = []
    for done, reports in progress:
        if done < due:
            continue
        due += epoch
        if reports:
            curve.append((done, accuracy(network, held_out)))
            seconds = time.monotonic() - start
            print(f"step {done}  accuracy {curve[-1][1]:.2f} %  {seconds:.1f} s", flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps(curve))
    if job:
        job.close()
    else:
        ddl.shutdown()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small ResNet on Fashion-MNIST.")
    add = parser.add_argument
    add("--method", choices=METHODS, default="f32")
    add("--data", type=Path, default=FOLDER, help="folder of the files (default: %(default)s)")
    add("--epochs", type=int, default=3, metavar="N")
    add("--seed", type=int, default=0)
    add("--width", type=int, default=16, metavar="N", help="channels of the first block")
    add("--logical", type=int, default=2, metavar="N", help="logical workers of an elastic job")
    add("--local-steps", type=int, default=16, metavar="N", help="local steps of a round")
    add("--wire", default="f32", metavar="W", help="wire format of the averages of rounds")
    add("--json", type=Path, metavar="FILE", help="write the steps and the accuracy as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
