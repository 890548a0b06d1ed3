# SPDX-License-Identifier: Apache-2.0
"""Train with PyTorch on workers of which one computes wrongly, as --fault says.

    ddl elastic run -n 3 --audit 0.1 audited.py --fault gradient --member 1 --every 10

gradient  a bit of a gradient flips in every n-th share of the member, from a step on
once      the same, once
weight    a bit of a weight flips once, before a step
sum       a bit of the sum of all shares flips once, before the vote on it
applied   the same, after the vote
hidden    no worker: the program has state that changes with each share
none      no worker

With --killed the given member is killed after three steps, and steps are slow until another worker
has taken its place.
"""

import argparse
import os
import signal
import time
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import ddl_torch.elastic as elastic
from ddl_elastic.step.step import Step

NAME = "1.weight"  # index of the tensor that has the wrong bit


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="none")
    parser.add_argument("--member", type=int, default=1)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--begin", type=int, default=5)
    parser.add_argument("--bit", type=int, default=22)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--logical", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint")
    parser.add_argument("--save-every", type=int, default=4)
    parser.add_argument("--killed", type=int, default=-1)
    return parser.parse_args()


def flip(tensor: torch.Tensor, bit: int) -> None:
    tensor.detach().reshape(-1)[:1].view(torch.int32).bitwise_xor_(1 << bit)


class Fault:
    """Flips bits in this process, if it is the chosen member."""

    def __init__(self, options: argparse.Namespace, model: nn.Module, job: Any) -> None:
        self._options, self._job = options, job
        self.step = self._shares = 0
        self._is_done = job.group.member != options.member
        self._weight: Any = model.get_parameter(NAME)
        if not self._is_done and options.fault in ("gradient", "once"):
            self._weight.register_hook(self._flip_gradient)
        if not self._is_done and options.fault == "sum":
            reduce = Step._reduce

            def wrong_reduce(step: Step) -> None:
                reduce(step)
                if self._is_due("sum") and step._trains:
                    flip(torch.from_numpy(step._result[0]), options.bit)

            Step._reduce = wrong_reduce  # type: ignore[method-assign]

    def _is_due(self, fault: str) -> bool:
        options = self._options
        if self._is_done or options.fault != fault or self.step < options.begin:
            return False
        self._is_done = True
        return True

    def _flip_gradient(self, gradient: torch.Tensor) -> torch.Tensor | None:
        options = self._options
        if self.step < options.begin or (options.fault == "once" and self._is_done):
            return None
        self._shares += 1
        if options.fault == "gradient" and self._shares % options.every:
            return None
        self._is_done = True
        wrong = gradient.clone(memory_format=torch.contiguous_format)
        flip(wrong, options.bit)
        return wrong

    def begin(self, step: int) -> None:
        self.step = step
        if self._is_due("weight"):
            flip(self._weight, self._options.bit)

    def apply(self) -> None:
        if self._is_due("applied"):
            flip(self._weight.grad, self._options.bit)


def main() -> None:
    options = parse()
    torch.manual_seed(1)
    data = torch.utils.data.TensorDataset(torch.randn(96, 16), torch.randint(3, (96,)))
    model = nn.Sequential(
        nn.BatchNorm1d(16), nn.Linear(16, 24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 3)
    )
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    job = elastic.Job(
        model,
        optimizer,
        batch=4 * options.logical,
        logical=options.logical,
        seed=options.seed,
        checkpoint=options.checkpoint,
        every=options.save_every,
    )
    fault, hidden = Fault(options, model, job), 0
    size = job.group.comm.size
    for step in job.steps(data, steps=options.steps):
        if options.killed >= 0 and step.number == 3 and job.group.member == options.killed:
            os.kill(os.getpid(), signal.SIGKILL)
        if options.killed >= 0 and (job.group.comm.size < size or job.group.observing):
            time.sleep(0.05)
        fault.begin(step.number)
        for x, y in step:
            loss = functional.cross_entropy(model(x), y)
            if options.fault == "hidden" and step.number >= options.begin:
                hidden += 1
                loss = loss * (1 + 0.01 * hidden + 0.1 * job.group.member)
            step.backward(loss)
        fault.apply()
        optimizer.step()
    if job.is_writer:
        print("final", job.hash())


main()
