# SPDX-License-Identifier: Apache-2.0
"""Train a small convolutional network to read handwritten digits, with workers that may die.

    python examples/elastic_digits.py                        as many workers as are useful here
    python examples/elastic_digits.py --workers 4 --kill 2   two of four are killed meanwhile
    python examples/elastic_digits.py --local-steps 4        in rounds, for slow networks

The network has batch norm and dropout, and images are shifted at random. No part of the program
depends on the number of workers. The hash of the final state is the same for any number of workers
and any deaths.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ddl_elastic import Job

TEST_IMAGES = 360


class Digits:
    """The images for training, each shifted by up to one pixel at random."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        shifts = random.randint(-1, 1), random.randint(-1, 1)
        return self.images[index].roll(shifts, (1, 2)), self.labels[index]


def make_network() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(32 * 4 * 4, 10)),
    )


def make_optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=3e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network to read digits.")
    parser.add_argument("--workers", default="1:16", help='a number, or "min:max"')
    parser.add_argument("--passes", type=int, default=4)
    parser.add_argument("--local-steps", type=int, metavar="H", help="train in rounds of H steps")
    parser.add_argument("--kill", type=int, default=0, metavar="N", help="kill N workers meanwhile")
    arguments = parser.parse_args()

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    job = Job(
        model=make_network,
        data=Digits(images[TEST_IMAGES:], labels[TEST_IMAGES:]),
        loss=cross_entropy,
        optimizer=make_optimizer,
        batch=64,
        logical=16,
        workers=arguments.workers,
        passes=arguments.passes,
        local_steps=arguments.local_steps,
        seed=7,
    )
    model = job.train(Killer(arguments.kill)).eval()
    if not job.is_writer:
        return

    with torch.no_grad():
        right = model(images[:TEST_IMAGES]).argmax(1) == labels[:TEST_IMAGES]
    report = job.report()
    print(
        f"accuracy {100 * right.float().mean():.2f} %  loss {report['loss']:.4f}"
        f"  {len(report['workers'])} workers, {report['recomputed']} shares recomputed"
        f"  {report['seconds']:.1f} s  state {report['hash'][:16]}"
    )


class Killer:
    """A callback that kills this number of workers one by one, each after 15 more steps."""

    def __init__(self, number: int) -> None:
        self.killed, self.number = 0, number

    def __call__(self, report: dict[str, Any]) -> None:
        if self.killed < self.number and report["steps"] >= 15 * (self.killed + 1):
            os.kill(report["workers"][self.killed]["pid"], signal.SIGKILL)
            self.killed += 1


if __name__ == "__main__":
    main()
