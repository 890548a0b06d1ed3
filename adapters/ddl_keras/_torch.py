"""A sum over the ranks with a gradient, for the PyTorch backend."""

from __future__ import annotations

from typing import Any

import torch

import ddl_torch


class Sum(torch.autograd.Function):
    """ddl_torch.allreduce; back come the sums of the ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return ddl_torch.allreduce(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return ddl_torch.allreduce(gradient.contiguous())
