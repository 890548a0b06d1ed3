# SPDX-License-Identifier: Apache-2.0
"""Checks for models and optimizers with which an elastic job would not be reproducible."""

from __future__ import annotations

from itertools import chain

import torch
from torch import nn

from ddl_torch.batch_norm import SyncBatchNorm

# Class names, so that the classes need not be imported.
_SHARDED = ("DTensor", "FSDPModule", "FullyShardedDataParallel", "ZeroRedundancyOptimizer")


def refuse(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise TypeError or ValueError for models and optimizers that elastic jobs do not support."""
    for name, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm | SyncBatchNorm):
            raise TypeError(
                f"{name or 'model'} is a SyncBatchNorm: its statistics would depend on the number"
                " of processes. Use BatchNorm: elastic training averages its statistics over the"
                " logical workers"
            )
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise TypeError(
                f"{name or 'model'} is an {type(module).__name__} with max_norm: its forward pass"
                " changes the weights that a batch uses, and each process has other batches. Set"
                " max_norm to None, and bound the norms after a step"
            )
        if isinstance(module, nn.parallel.DistributedDataParallel):
            raise TypeError("model is a DistributedDataParallel; pass the module inside it")
    for name, part in [("model", model), ("optimizer", optimizer), *model.named_parameters()]:
        for kind in type(part).__mro__:
            if kind.__name__ in _SHARDED:
                raise TypeError(
                    f"{name} is sharded over processes ({kind.__name__}), but each process of an"
                    " elastic job needs the whole state. Pass a model and an optimizer without"
                    " sharding"
                )
    if hasattr(optimizer, "synchronize"):
        raise TypeError(
            "optimizer is a DistributedOptimizer: an elastic job adds the gradients itself, without"
            " compression, so that its bits do not depend on the number of workers. Pass the"
            " optimizer inside it; on a slow network, use job.rounds"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise TypeError(
            "optimizer is an LBFGS, which computes the loss several times in a step; elastic"
            " training computes it once. Use an optimizer whose step needs no closure"
        )
    known = set(model.parameters())
    for parameter in chain.from_iterable(group["params"] for group in optimizer.param_groups):
        if parameter not in known:
            shape = tuple(parameter.shape)
            raise ValueError(f"optimizer has a parameter of shape {shape} that model does not have")
