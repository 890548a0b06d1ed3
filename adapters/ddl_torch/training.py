# SPDX-License-Identifier: Apache-2.0
"""Small helpers for training loops on many ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from ddl_torch.collectives import allreduce
from ddl_torch.world import adapter, size


def average_metrics(metrics: Mapping[str, float], weight: float = 1.0) -> dict[str, float]:
    """The ranks' average of each metric.

    metrics  numbers, or tensors of one element, by name; the same names in the same order on all
             ranks
    weight   how much this rank's values count, such as its number of samples

    All ranks call it. Raises like `allreduce`, InvalidArgument for a negative weight.
    """

    def total(own: list[float]) -> list[float]:
        sums: list[float] = allreduce(torch.tensor(own, dtype=torch.float64)).tolist()
        return sums

    return adapter().average_metrics(metrics, weight, total)


def scaled_warmup(
    optimizer: torch.optim.Optimizer,
    steps: int,
    scale: float | None = None,
    after: Callable[[int], float] | None = None,
) -> torch.optim.lr_scheduler.LambdaLR:
    """A schedule for large batches by the linear scaling rule: a batch that is n times larger takes
    a learning rate that is n times higher. The rate rises gradually, since the full one would be
    too high for fresh weights.

    optimizer  with the learning rate for one rank's batch
    steps      calls of step() in which the rate rises evenly to `scale` times that
    scale      None: the number of ranks
    after      gives a further factor, such as a decay, for the number of steps since the full rate
               was reached; None: 1

    Returns a scheduler, whose step() is called after each of the optimizer's. Raises
    InvalidArgument for a negative number of steps.
    """
    if steps < 0:
        raise adapter().InvalidArgument(f"steps: {steps} is negative")
    full = float(size() if scale is None else scale)

    def factor(step: int) -> float:
        if step < steps:
            return 1.0 + (full - 1.0) * step / steps
        return full * (after(step - steps) if after else 1.0)

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
