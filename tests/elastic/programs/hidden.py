# SPDX-License-Identifier: Apache-2.0
"""Train with PyTorch and a state that joining workers do not get: `hidden.py WHAT [strict]`.

In the case `set once`, the state changes after the first step alone, and rank 0 is killed later.
"""

import os
import signal
import sys
import time
from typing import Any

import numpy as np
import torch
from torch import nn

import ddl_torch.elastic as elastic

WHAT = sys.argv[1]
WORKERS = 2
CONSTANT = np.random.default_rng(5)  # the loop does not draw from it


class Samples(torch.utils.data.Dataset[Any]):
    def __init__(self) -> None:
        self.generator = np.random.default_rng(1)
        self.samples = torch.randn(64, 8)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        noise = self.generator.normal(size=8) if WHAT == "generator" else np.zeros(8)
        return self.samples[index] + torch.from_numpy(noise).float(), index % 3


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.queue, self.ones = nn.Linear(8, 3), torch.zeros(3), torch.ones(3)
        self.factor = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mask = torch.ones(3)  # created again each time, with the same values
        found: torch.Tensor = self.linear(x) * self.mask * self.ones * self.factor
        if WHAT == "attribute":
            self.queue = 0.9 * self.queue + found.detach().mean(0)
        return found


def main() -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    average = torch.optim.swa_utils.AveragedModel(model)
    teacher, same = nn.Linear(8, 3), nn.Sequential(model)
    also = {} if WHAT == "average" else {"average": average}
    job = elastic.Job(model, optimizer, batch=8, logical=2, also=also, strict="strict" in sys.argv)
    for step in job.steps(Samples(), passes=8 if WHAT == "set once" else 2):
        for x, y in step:
            loss = nn.functional.cross_entropy(same(x), y) + 0 * teacher(x).sum()
            step.backward(loss)
        optimizer.step()
        average.update_parameters(model)
        if WHAT == "set once":
            if step.number == 0:
                model.factor = 2.0
            replace_first(job, step.number)
    print("trained")


def replace_first(job: Any, number: int) -> None:
    """Kill rank 0 after step 3, and let the others wait for the worker in its place."""
    if number == 3 and job.group.member == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if number >= 3 and not job.is_new and max(job.group.members) < WORKERS:
        time.sleep(0.25)


if __name__ == "__main__":
    main()
