# SPDX-License-Identifier: Apache-2.0
"""What torch_packing and horovod_packing train: a network that learns the outputs of another."""

import torch
from torch import nn

STEPS = 40


def make(seed: int = 9) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64))


class Task:
    """The samples of all ranks, and `own`, the part of one rank."""

    def __init__(self, rank: int, size: int) -> None:
        target = make(5)
        self.inputs = torch.randn(size * 32, 64)
        self.wanted = target(self.inputs).detach()
        self.own = slice(rank * 32, rank * 32 + 32)

    def own_loss(self, model: nn.Module) -> torch.Tensor:
        """Return this rank's loss, for training."""
        return nn.functional.mse_loss(model(self.inputs[self.own]), self.wanted[self.own])

    def loss(self, model: nn.Module) -> float:
        """Return the loss of all samples."""
        with torch.no_grad():
            return float(nn.functional.mse_loss(model(self.inputs), self.wanted))


def flat(model: nn.Module) -> torch.Tensor:
    """Return all parameters, flattened."""
    return torch.cat([each.detach().flatten() for each in model.parameters()])
