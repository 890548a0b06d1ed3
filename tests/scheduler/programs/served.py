# SPDX-License-Identifier: Apache-2.0
"""A small job for `ddl serve`: prints its workers' process numbers, and the final state's hash.

Its shares take a while, so that much can happen to it, until there is the file of --go.
"""

import argparse
import os
import time
from pathlib import Path

import torch
from torch import nn

import ddl_torch.elastic as elastic
from ddl_elastic.frameworks.protocol import digest

LOGICAL = 12


def layers(width: int) -> list[nn.Module]:
    return [nn.Linear(8, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 3)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--go", type=Path, default=Path())  # in use from the start
    parser.add_argument("--share", type=float, default=0.05, help="seconds")
    parser.add_argument("--step", type=float, default=0.0, help="seconds that no worker saves")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--width", type=int, default=16, help="of the hidden layer")
    arguments = parser.parse_args()
    print(f"pid {os.getpid()}", flush=True)
    torch.manual_seed(arguments.seed)
    data = torch.utils.data.TensorDataset(torch.randn(150, 8), torch.randint(3, (150,)))
    model = nn.Sequential(*layers(arguments.width))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    job = elastic.Job(
        model, optimizer, batch=24, logical=LOGICAL, every=arguments.every, watchdog=60
    )
    for step in job.steps(data, steps=arguments.steps):
        for x, y in step:
            if not arguments.go.exists():
                time.sleep(arguments.share)
            step.backward(nn.functional.cross_entropy(model(x), y))
        if not arguments.go.exists():
            time.sleep(arguments.step)
        optimizer.step()
    if job.is_writer:
        print(f"state {digest(job.framework.state())}", flush=True)
    job.close()


if __name__ == "__main__":
    main()
