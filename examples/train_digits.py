# SPDX-License-Identifier: Apache-2.0
"""Train a small convolutional network to read handwritten digits, on any number of processes.

    python examples/train_digits.py                     one process
    ddlrun -n 2 python examples/train_digits.py         two
    mpirun -n 2 python examples/train_digits.py         two

The data are the 1797 images of 8 x 8 pixels that come with scikit-learn. The lines marked (1), (2)
and (3) make it train on many processes; the rest is the same as for one process. The
processes share one sequence of batches, and each trains on its part of every batch, so the result
depends on their number only through rounding.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from contextlib import nullcontext

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

import ddl_torch as ddl

TEST_IMAGES = 360
RATE, RATE_BATCH = 0.02, 32  # the learning rate that suits a batch of this size


def main() -> int:
    arguments = parse()
    start = time.monotonic()
    ddl.init()  # (1) join the other processes
    torch.set_num_threads(1)  # the network is so small that threads wait for each other

    batch = arguments.global_batch or arguments.batch * ddl.size()
    if batch % ddl.size():
        sys.exit(f"--global-batch {batch} cannot be shared equally by {ddl.size()} processes")
    torch.manual_seed(arguments.seed)
    torch.use_deterministic_algorithms(True)
    (images, labels), test = load(arguments.seed)
    if batch > len(images):
        sys.exit(f"the batch of {batch} is larger than the {len(images)} images")

    model = DistributedDataParallel(network())  # (3) average the gradients of all processes
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9, weight_decay=1e-3)
    steps_per_epoch = len(images) // batch  # an incomplete batch at the end is left out
    steps = arguments.epochs * steps_per_epoch

    losses: list[torch.Tensor] = []
    shuffle = torch.Generator().manual_seed(arguments.seed)
    log = open(arguments.loss_log, "w") if arguments.loss_log and ddl.rank() == 0 else nullcontext()
    bar = tqdm(total=steps, unit="step", disable=ddl.rank() != 0)
    with log, bar:
        for _ in range(arguments.epochs):
            order = torch.randperm(len(images), generator=shuffle)
            for chosen in order.split(batch)[:steps_per_epoch]:
                mine = chosen[ddl.rank() :: ddl.size()]  # (2) this process's part of the batch
                optimizer.param_groups[0]["lr"] = learning_rate(len(losses), steps, batch)
                loss = cross_entropy(model(images[mine]), labels[mine])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

                losses.append(ddl.allreduce(loss.detach(), op="average"))
                if arguments.loss_log and ddl.rank() == 0:
                    print(json.dumps({"step": len(losses), "loss": losses[-1].item()}), file=log)
                bar.set_postfix(loss=f"{losses[-1].item():.3f}", refresh=False)
                bar.update()

    # All processes have trained the same model, to the last bit.
    weights = hash_of(model)
    everyones = ddl.allgather(torch.frombuffer(bytearray(weights), dtype=torch.uint8))
    if any(bytes(each.tolist()) != weights for each in everyones.chunk(ddl.size())):
        print(f"rank {ddl.rank()}: the processes' weights differ", file=sys.stderr)
        return 1
    if ddl.rank() == 0:
        if arguments.curve:
            plot(torch.stack(losses).tolist(), arguments.curve)
        epoch = torch.stack(losses[-steps_per_epoch:]).mean().item()
        print(
            f"accuracy {100 * accuracy(model.module, test):.2f} %  loss {epoch:.4f}"
            f"  {time.monotonic() - start:.1f} s  {ddl.size()} processes, batch {batch}"
            f"  weights {weights.hex()[:16]}"
        )
    ddl.shutdown()
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small network to read digits.")
    number = positive_integer
    parser.add_argument("--epochs", type=number, default=30, metavar="N")
    parser.add_argument(
        "--batch", type=number, default=32, metavar="N", help="images per process and step"
    )
    parser.add_argument(
        "--global-batch", type=number, metavar="N", help="images of all processes per step"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--curve", metavar="FILE", help="plot the loss (needs matplotlib)")
    parser.add_argument("--loss-log", metavar="FILE", help="write each step's loss there, as JSON")
    return parser.parse_args()


def positive_integer(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def load(seed: int) -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    """Return images, scaled to values from 0 to 1, and their labels: for training, and for the
    test."""
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(seed))
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1)[order] / 16
    labels = torch.tensor(digits.target)[order]
    return (images[TEST_IMAGES:], labels[TEST_IMAGES:]), (
        images[:TEST_IMAGES],
        labels[:TEST_IMAGES],
    )


def network() -> nn.Module:
    """Return a network in which nothing depends on how a batch is split: no batch norm, no
    dropout."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def learning_rate(step: int, steps: int, batch: int) -> float:
    """Return the learning rate. It is proportional to the batch and thus to the number of
    processes. It rises over the first tenth of the steps, as large rates require, and falls to zero
    at the end."""
    warm_up = max(1, steps // 10)
    peak = RATE * batch / RATE_BATCH
    if step < warm_up:
        return peak * (step + 1) / warm_up
    return peak * (steps - step) / (steps - warm_up)


def plot(losses: list[float], file: str) -> None:
    """Plot the loss of each step, and its mean over the last 20."""
    from matplotlib.figure import Figure

    means = [sum(losses[max(0, i - 19) : i + 1]) / min(i + 1, 20) for i in range(len(losses))]
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(losses, color="lightgray", label="each step")
    axes.plot(means, label="mean of 20 steps")
    axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.set_title(f"train_digits.py, {ddl.size()} processes")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(file, dpi=120)
    print(f"the training curve: {file}")


@torch.no_grad()
def accuracy(model: nn.Module, test: tuple[torch.Tensor, torch.Tensor]) -> float:
    images, labels = test
    return (model(images).argmax(1) == labels).float().mean().item()


def hash_of(model: nn.Module) -> bytes:
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    return digest.digest()


if __name__ == "__main__":
    sys.exit(main())
