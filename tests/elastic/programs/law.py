# SPDX-License-Identifier: Apache-2.0
"""Train with PyTorch, in one of the ways that MODES lists; prints the final state's hash.

    ddl elastic run -n 2 law.py MODE [--strike]

With --strike rank 0 is killed in step 5. Once a worker has joined in its place and has caught up,
the last one of the first workers is killed, too: the final state is the joining worker's.
"""

import hashlib
import os
import signal
import sys
import time
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import ddl_torch.elastic as elastic

MODES = {
    "unused": "a layer that the loss never depends on",
    "stale slots": "a layer that the loss depends on from a later epoch on",
    "volatile": "a buffer with persistent=False that the forward pass changes",
    "unfreeze": "a layer that is trained from a later epoch on",
    "unfreeze in loop": "the same, from a later step of an epoch on",
    "evaluating": "dropout that is switched off from a later epoch on",
    "group": "a layer that the optimizer gets in a later epoch",
    "wide slots": "slots of a wider type than the parameters",
    "order of a set": "weights whose order is that of a set of strings",
    "added in loop": "a parameter that the model gets in a later step of an epoch",
}
EPOCHS, STEPS, CHANGE = 12, 4, 2  # the change comes in this epoch
WORKERS = 2


class Wide(torch.optim.Optimizer):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for each in group["params"]:
                slot = self.state[each].setdefault("mean", torch.zeros_like(each).double())
                slot.mul_(0.9).add_(each.grad)
                each.add_(slot.float(), alpha=-group["lr"])


class Net(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode, self.uses_aux = mode, False
        self.first, self.last, self.aux = nn.Linear(16, 24), nn.Linear(24, 3), nn.Linear(24, 3)
        self.dropout = nn.Dropout(0.2)
        self.scale: torch.Tensor
        self.register_buffer("scale", torch.ones(1), persistent=False)

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.dropout(functional.relu(self.first(x)))
        if self.mode == "volatile":
            if self.training:
                self.scale.mul_(0.98).add_(0.02 * hidden.detach().abs().mean())
            hidden = hidden / self.scale
        return self.last(hidden) + (self.aux(hidden) if self.uses_aux else 0)


def main() -> None:
    mode, strikes = sys.argv[1], "--strike" in sys.argv
    assert mode in MODES
    torch.manual_seed(1)
    data = torch.utils.data.TensorDataset(torch.randn(96, 16), torch.randint(3, (96,)))
    model = Net(mode)
    if mode == "order of a set":
        with torch.no_grad():
            for number, name in enumerate({each for each, _ in model.named_parameters()}):
                model.get_parameter(name).mul_(1 + number / 8)
    if mode.startswith("unfreeze"):
        model.first.requires_grad_(False)
    parts = [model.first, model.last] if mode == "group" else [model]
    parameters = [each for part in parts for each in part.parameters()]
    optimizer = Wide(parameters) if mode == "wide slots" else torch.optim.Adam(parameters, 0.01)
    if mode == "wide slots":
        model.uses_aux = True
    job = elastic.Job(model, optimizer, batch=24, logical=4)
    for epoch in range(EPOCHS):
        if epoch == CHANGE:
            change(mode, model, optimizer)
        for step in job.steps(data, passes=1):
            for x, y in step:
                step.backward(functional.cross_entropy(model(x), y))
            optimizer.step()
            if step.number == CHANGE * STEPS and mode == "unfreeze in loop":
                model.first.requires_grad_(True)
            if step.number == CHANGE * STEPS and mode == "added in loop":
                model.extra = nn.Parameter(torch.ones(3))
            if strikes:
                strike(job, step.number)
    if job.is_writer:
        weights = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
        print("final", job.hash(), hashlib.sha256(weights).hexdigest())


def change(mode: str, model: Net, optimizer: torch.optim.Optimizer) -> None:
    if mode == "stale slots":
        model.uses_aux = True
    elif mode == "unfreeze":
        model.first.requires_grad_(True)
    elif mode == "evaluating":
        model.dropout.eval()
    elif mode == "group":
        optimizer.add_param_group({"params": model.aux.parameters(), "lr": 0.02})
        model.uses_aux = True


def strike(job: Any, number: int) -> None:
    if job.is_new:
        return
    group = job.group
    joined = [each for each in group.members if each >= WORKERS]
    caught_up = [each for each in joined if each not in group.observing]
    if number >= 5 and group.member == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    if caught_up and group.member == 1 and number >= 5 + STEPS * CHANGE:
        os.kill(os.getpid(), signal.SIGKILL)
    if number >= 5 and not caught_up:
        time.sleep(0.25)  # for a worker that joins next


if __name__ == "__main__":
    main()
