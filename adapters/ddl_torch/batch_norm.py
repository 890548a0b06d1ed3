# SPDX-License-Identifier: Apache-2.0
"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ddl_torch.collectives import allgather, allreduce
from ddl_torch.world import group


class SyncBatchNorm(nn.modules.batchnorm._BatchNorm):
    """A batch normalization (1d to 3d) that uses the mean and variance of all ranks' batches.

    Small batches per rank then train like one large batch. Batch sizes may differ. All ranks call
    forward and backward. The arguments are the same as for nn.BatchNorm1d. In evaluation mode the
    layer works like nn.BatchNorm1d and sends nothing.
    """

    @classmethod
    def convert(cls, module: nn.Module) -> nn.Module:
        """Replace a module's batch normalizations by this class in place, and return the module.
        Parameters stay the same."""
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not isinstance(module, cls):
            module.__class__ = cls
        for child in module.children():
            cls.convert(child)
        return module

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"input has {input.dim()} dimensions; must have at least 2")

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        if not self.training and self.running_mean is not None:
            own = (self.running_mean, self.running_var, self.weight, self.bias)
            return nn.functional.batch_norm(input, *own, eps=self.eps)
        values = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        result, _, mean, variance, count = _Normalize.apply(values, self.eps)
        shape = [1, -1] + [1] * (values.dim() - 2)
        if self.weight is not None:
            result = result * self.weight.view(shape)
        if self.bias is not None:
            result = result + self.bias.view(shape)
        if self.training and self.running_mean is not None:
            self._track(mean, variance * (count / (count - 1).clamp(min=1)))
        return result.to(input.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = self.momentum
        if share is None:  # average over all batches so far
            share = 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(variance.to(self.running_var.dtype), share)


class _Normalize(torch.autograd.Function):
    """The function (values - mean) * scale, where scale is 1 / deviation. Mean and deviation are
    computed over all ranks' values.

    It also returns the scale, and without gradients the mean, the variance and the number of
    values. Backward uses only these results and differentiable operations, so gradients of any
    order are correct.
    """

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        group()
        over = [0, *range(2, values.dim())]
        own = values.new_tensor([values.numel() / values.shape[1]])
        if values.numel():
            variance, mean = torch.var_mean(values, over, unbiased=False)
        else:
            variance = mean = values.new_zeros(values.shape[1])
        # Combining the ranks' means and variances keeps precision, unlike adding squares.
        every = allgather(torch.cat([mean, variance, own])[None])
        means, variances, counts = every.split([len(mean), len(mean), 1], 1)
        count = counts.sum()
        mean = (means * counts).sum(0) / count
        variance = ((variances + (means - mean) ** 2) * counts).sum(0) / count
        scale = (variance + eps).rsqrt()
        ctx.over, ctx.shape = over, [1, -1] + [1] * (values.dim() - 2)
        normal = (values - mean.view(ctx.shape)) * scale.view(ctx.shape)
        ctx.save_for_backward(normal, scale, count)
        ctx.mark_non_differentiable(mean, variance, count)
        return normal, scale, mean, variance, count

    @staticmethod
    def backward(
        ctx: Any, gradient: Tensor, of_scale: Tensor, *ignored: Any
    ) -> tuple[Tensor, None]:
        normal, scale, count = ctx.saved_tensors
        slopes = (gradient * normal).sum(ctx.over) + of_scale * scale
        means = allreduce(torch.stack([gradient.sum(ctx.over), slopes])) / count
        shift, slope = (part.view(ctx.shape) for part in means.unbind())
        return (gradient - shift - normal * slope) * scale.view(ctx.shape), None
