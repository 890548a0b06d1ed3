# SPDX-License-Identifier: Apache-2.0
"""A program with a loop of its own, for `ddl elastic run`: prints the final state's hash.

Some workers are struck where the arguments say so, see strikes.py, and with --moments where files
say so, see moments.py. While there is a file "slow", each share takes as many seconds longer as it
says. With --tell each worker tells of its steps, see steps.py.
"""

import argparse
import itertools
import os
import sys
from contextlib import suppress
from pathlib import Path

import torch
from torch import nn

import ddl_torch.elastic as elastic
from ddl_elastic.storage import saving

sys.path.insert(0, str(Path(__file__).parent))

import moments
import steps
from strikes import strike


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--strike", default="")
    parser.add_argument("--members", default="1")
    parser.add_argument("--watchdog", type=float, default=10.0)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--uneven", action="store_true", help="the workers have other data")
    parser.add_argument("--refused", type=int, default=99, help="workers from this one on")
    parser.add_argument("--logical", type=int, default=12)
    parser.add_argument("--differ", action="store_true", help="the workers' optimizers")
    parser.add_argument("--no-also", dest="also", action="store_false")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--open", action="store_true", help="jobs are not closed")
    parser.add_argument("--checkpoint")
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--blind", type=int, help="the worker that finds no checkpoint")
    parser.add_argument("--apart", type=int, default=99, help="workers from this one on: folder")
    parser.add_argument("--unsaved", action="store_true", help="those have no checkpoints")
    parser.add_argument("--moments", action="store_true")
    parser.add_argument("--tell", action="store_true")
    arguments = parser.parse_args()
    if arguments.moments:
        moments.install()
        moments.die_once("start")
    for _ in range(arguments.times):
        train(arguments)


def count_starts() -> int:
    """Return the number of workers that have started before this one."""
    for number in itertools.count():
        with suppress(FileExistsError):
            Path(f"started-{number}").mkdir()
            return number
    raise AssertionError


def train(arguments: argparse.Namespace) -> None:
    struck = [int(each) for each in arguments.members.split(",")]
    torch.manual_seed(1)
    data = torch.utils.data.TensorDataset(torch.randn(150, 8), torch.randint(3, (150,)))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
    checkpoint = arguments.checkpoint
    if checkpoint and count_starts() >= arguments.apart:  # as on a host with another file system
        checkpoint = None if arguments.unsaved else f"{checkpoint}-{os.getpid()}"
    job = elastic.Job(
        model,
        optimizer,
        batch=24,
        logical=arguments.logical,
        watchdog=arguments.watchdog,
        also={"schedule": schedule} if arguments.also else None,
        checkpoint=checkpoint,
        every=arguments.every,
    )
    if arguments.blind == job.group.member:
        saving.newest = lambda *_: None
    if arguments.uneven:
        data = torch.utils.data.Subset(data, range(140 + job.group.member))
    for step in job.steps(data, passes=arguments.passes):
        for x, y in step:
            if arguments.strike and step.number == 5 and job.group.member in struck:
                strike(arguments.strike, job.group, "")
            steps.slow_down()
            wrong = job.awaits_admission and job.group.member >= arguments.refused
            step.backward(nn.functional.cross_entropy(model(x), y) * (2 if wrong else 1))
        optimizer.step()
        schedule.step()
        if arguments.tell:
            steps.tell(step.number, job.group.member)
        if arguments.differ:
            optimizer.param_groups[0]["weight_decay"] = job.group.member
    if job.is_writer:
        print(f"state {job.hash()}")
    if not arguments.open:
        job.close()


if __name__ == "__main__":
    main()
