# SPDX-License-Identifier: Apache-2.0
"""The loops of members.py around an elastic step."""

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ddl_torch.elastic.tensors import pack

CLASSES = 10


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.classify = nn.Linear(8, 16), nn.Linear(16, CLASSES)
        self.position = nn.Parameter(0.02 * torch.randn(8, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.encoder(self.embed(x.squeeze(1)) + self.position)
        return self.classify(tokens.mean(1))


class Layer(nn.Module):
    """A layer with a second output, and with an activation checkpoint inside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(0.1)
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        inner = checkpoint(self.inner, self.norm(x), use_reentrant=False)
        return {"x": x + self.dropout(self.outer(torch.relu(inner))), "cost": inner.square().mean()}


class Layers(nn.Module):
    """A model of layers between two other modules. The second layer is in a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.classify = nn.Linear(64, 48), nn.Linear(48, CLASSES)
        self.layers = nn.ModuleList([Layer(48) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, costs = self.embed(x.flatten(1)), torch.zeros(())
        for number, layer in enumerate(self.layers):
            found = checkpoint(layer, x, use_reentrant=False) if number == 1 else layer(x)
            x, costs = found["x"], costs + found["cost"]
        return self.classify(x) + 0.01 * costs


class Loop:
    """What a program does beside computing gradients and stepping the optimizer.

    clip        the norm of the gradients
    bf16        computes under autocast
    scale       scales the loss; the first scale is too large
    accumulate  adds up the gradients of two steps
    schedule    warms up, then decays
    average     keeps a moving average of the parameters
    """

    def __init__(self, kind: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._kind, self._model, self._optimizer = kind, model, optimizer
        self._parameters = list(model.parameters())
        self._sums = [torch.zeros_like(each) for each in self._parameters]
        self._steps = 0
        schedules = torch.optim.lr_scheduler
        self.schedule: Any = schedules.StepLR(optimizer, 5, 0.9)
        if kind == "schedule":
            parts = (
                schedules.LinearLR(optimizer, 0.1, 1, 3),
                schedules.ExponentialLR(optimizer, 0.9),
            )
            self.schedule = schedules.SequentialLR(optimizer, [*parts], [3])
        self._scaler = torch.amp.GradScaler("cpu", 2.0**127, growth_interval=2)
        self._scaler.scale(torch.zeros(()))  # creates its state, even if there is no share
        mean = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        self._average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=mean)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self._kind == "bf16"):
            loss = nn.functional.cross_entropy(self._model(x), y)
        return self._scaler.scale(loss) if self._kind == "scale" else loss

    def update(self) -> None:
        self._steps += 1
        if self._kind == "accumulate":
            for total, parameter in zip(self._sums, self._parameters, strict=True):
                total += parameter.grad
                parameter.grad = total / 2
            if self._steps % 2:
                return
            self._sums = [torch.zeros_like(each) for each in self._parameters]
        if self._kind == "clip":
            nn.utils.clip_grad_norm_(self._parameters, 0.1)
        if self._kind == "scale":
            self._scaler.unscale_(self._optimizer)
            nn.utils.clip_grad_norm_(self._parameters, 0.1)
            self._scaler.step(self._optimizer)
            self._scaler.update()
        else:
            self._optimizer.step()
        self.schedule.step()
        if self._kind == "average":
            self._average.update_parameters(self._model)

    def state(self) -> dict[str, Any]:
        values = {f"average.{n}": value for n, value in self._average.state_dict().items()}
        values |= {f"scaler.{n}": value for n, value in self._scaler.state_dict().items()}
        return {name: pack(name, value) for name, value in values.items()}
