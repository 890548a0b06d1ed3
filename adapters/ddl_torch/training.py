# SPDX-License-Identifier: Apache-2.0
"""Helpers for training loops on many ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from ddl_torch.collectives import allreduce
from ddl_torch.world import adapter, size


def average_metrics(metrics: Mapping[str, float], weight: float = 1.0) -> dict[str, float]:
    """Return the ranks' average of each metric.

    metrics  numbers, or tensors of one element, by name; the same names in the same order on all
             ranks
    weight   the weight of this rank's values, such as its number of samples

    All ranks call this. Raises the errors of `allreduce`, and InvalidArgument if weight < 0.
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
    """Return a learning-rate scheduler for large batches, by the linear scaling rule: a batch that
    is n times larger uses a rate that is n times higher. The rate rises gradually, because the full
    rate is too high for untrained weights.

    optimizer  an optimizer with the learning rate for one rank's batch
    steps      number of steps in which the rate rises linearly from this rate to `scale` times it
    scale      the factor; None means the number of ranks
    after      a function that returns a further factor, such as a decay, for the number of steps
               since the full rate was reached; None means 1

    Call the scheduler's step() after each step of the optimizer. Raises InvalidArgument if steps is
    negative.
    """
    if steps < 0:
        raise adapter().InvalidArgument(f"steps is {steps}; must be at least 0")
    full = float(size() if scale is None else scale)

    def factor(step: int) -> float:
        if step < steps:
            return 1.0 + (full - 1.0) * step / steps
        return full * (after(step - steps) if after else 1.0)

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
