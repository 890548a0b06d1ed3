# SPDX-License-Identifier: Apache-2.0
"""Train ResNet-50 or ResNet-101 like imagenet_resnet50.py, with processes that may die.

    python examples/imagenet_resnet50.py --make-sample DATA        make a small DATA for a test
    python examples/elastic_resnet.py DATA                         one process
    ddl elastic run -n 4 examples/elastic_resnet.py DATA --kill 2  four; two are killed meanwhile

The state's hash at the end is the same for any number of processes and any deaths.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import signal
from pathlib import Path
from typing import Any

import torch
from imagenet_resnet50 import RATE, RATE_BATCH, WARM_UP, Images, collate, parameters
from resnet import BLOCKS, ResNet
from torch import Tensor
from torch.nn.functional import cross_entropy

import ddl_torch.elastic as elastic


class Pictures(Images):
    """The images by number. Their crops are drawn from the random generators, which the job
    seeds."""

    def __getitem__(self, number: int) -> Any:  # type: ignore[override]
        return super().__getitem__((random.getrandbits(32), number))


def main() -> None:
    arguments = parse()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(0)
    pictures = Pictures(arguments.data / "train", arguments.size, 0, training=True)
    held_out = Pictures(arguments.data / "val", arguments.size, 0, training=False)
    steps_per_pass = len(pictures) / arguments.batch

    network = ResNet(arguments.model, len(pictures.classes))
    network.to(memory_format=torch.channels_last)  # as the images are
    rate = RATE * arguments.batch / RATE_BATCH
    optimizer = torch.optim.SGD(parameters(network), lr=rate, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda t: min(1, (t + 1) / (WARM_UP * steps_per_pass))
    )
    job = elastic.Job(
        network,
        optimizer,
        batch=arguments.batch,
        logical=arguments.logical,
        also={"schedule": schedule},
    )

    reading = {"collate": collate, "loader_workers": arguments.loader_workers}
    for step in job.steps(pictures, passes=arguments.passes, **reading):
        for images, labels in step:
            step.backward(cross_entropy(network(images), labels))
        optimizer.step()
        schedule.step()
        job.log(f"step {step.number}", loss=job.loss)
        if step.number + 1 in range(2, 2 * arguments.kill + 1, 2) and job.is_writer:
            os.kill(os.getpid(), signal.SIGKILL)

    def count_right(batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        return (network(images).argmax(1) == labels).sum()

    right = job.map(held_out, count_right, batch=32, **reading).sum()
    job.log(f"accuracy {100 * right / len(held_out):.2f} %  state {job.hash()[:16]}")
    job.close()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train ResNet-50 or ResNet-101 elastically.")
    parser.add_argument("data", type=Path, metavar="DATA", help="the folder with train and val")
    parser.add_argument("--model", choices=sorted(BLOCKS), default="resnet50")
    parser.add_argument("--passes", type=int, default=90, metavar="N")
    parser.add_argument("--batch", type=int, default=256, metavar="N", help="images in a step")
    parser.add_argument("--logical", type=int, default=16, metavar="N", help="logical workers")
    parser.add_argument("--size", type=int, default=224, metavar="N", help="pixels of an image")
    parser.add_argument("--loader-workers", type=int, default=0, metavar="N")
    parser.add_argument("--kill", type=int, default=0, metavar="N", help="kill N processes")
    return parser.parse_args()


if __name__ == "__main__":
    main()
