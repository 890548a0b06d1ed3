# SPDX-License-Identifier: Apache-2.0
"""Checks for models and optimizers with which an elastic job would not be reproducible."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from ddl_elastic.base.audits import find_options
from ddl_torch.batch_norm import SyncBatchNorm
from ddl_torch.elastic.guards import FUSED

# Class names, so that the classes need not be imported.
_SHARDED = ("DTensor", "FSDPModule", "FullyShardedDataParallel", "ZeroRedundancyOptimizer")

# They read all gradients or parameters between two steps.
_UNSHARDED = ("GradScaler", "AveragedModel")


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


def refuse_clipping(limit: float | None, also: Mapping[str, Any]) -> None:
    """Raise ValueError if a job cannot clip gradients at this norm."""
    if limit is None:
        return
    if not 0 < limit < math.inf:
        raise ValueError(f"clip_norm is {limit}; must be positive and finite")
    for name, each in also.items():
        if any(kind.__name__ == "GradScaler" for kind in type(each).__mro__):
            raise ValueError(
                f"also[{name!r}] is a GradScaler, which scales the gradients that clip_norm would"
                " clip: unscale them, and call torch.nn.utils.clip_grad_norm_"
            )


def refuse_sharded(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    supported: tuple[type, ...],
    also: Mapping[str, Any],
) -> None:
    """Raise TypeError or ValueError for models and optimizers that a job with shard=True does not
    support. `supported` has the classes of supported optimizers."""
    kind = type(optimizer)
    if kind not in supported:
        names = ", ".join(each.__name__ for each in supported)
        raise TypeError(
            f"optimizer is of {kind.__module__}.{kind.__qualname__}; shard=True supports {names},"
            " which compute each element by itself. The bits of other optimizers may depend on the"
            " cut of the state between the processes"
        )
    if any(group.get("fused") for group in optimizer.param_groups):
        raise ValueError("optimizer has fused=True, which shard=True does not support")
    memory = dict[int, str]()
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        shown = f"{name} is a parameter of {parameter.dtype} on {parameter.device}"
        if parameter.dtype not in (torch.float32, torch.float64) or not parameter.is_cpu:
            raise TypeError(f"{shown}; shard=True supports float32 and float64 on the CPU")
        if not parameter.is_contiguous():
            raise ValueError(f"{name} is not contiguous in memory; shard=True requires this")
        if not parameter.numel():
            raise ValueError(f"{name} has no elements, which shard=True does not support")
        other = memory.setdefault(parameter.untyped_storage().data_ptr(), name)
        if other != name:
            raise ValueError(f"{name} and {other} share memory, which shard=True does not support")
    trained = Counter(tuple(p.shape) for p in model.parameters() if p.requires_grad)
    for name, each in also.items():
        reads = any(kind.__name__ in _UNSHARDED for kind in type(each).__mro__)
        # Averages of the parameters have their shapes.
        if reads or not trained - Counter(_shapes(each.state_dict())):
            raise TypeError(
                f"also[{name!r}] is an object of {type(each).__name__}, which needs whole gradients"
                " or parameters between two steps; shard=True does not support it"
            )


def _shapes(found: Any) -> Iterator[tuple[int, ...]]:
    """Yield the shapes of all tensors in nested containers."""
    if isinstance(found, Tensor):
        yield tuple(found.shape)
    elif isinstance(found, Mapping | list | tuple):
        for each in found.values() if isinstance(found, Mapping) else found:
            yield from _shapes(each)


def refuse_blocks(model: nn.Module, blocks: Sequence[nn.Module]) -> None:
    """Raise TypeError or ValueError for blocks that a sharded job does not support."""
    names = {module: name for name, module in model.named_modules()}
    owners: dict[nn.Parameter, nn.Module] = {}
    for block in blocks:
        if block not in names:
            raise ValueError(f"blocks has a {type(block).__name__} that is not in the model")
        for part in block.modules():
            if part is not block and part in blocks:
                raise ValueError(f"blocks has {names[block]} and {names[part]}, which is inside it")
        owners.update(dict.fromkeys(block.parameters(), block))
    for module, name in names.items():
        parts = {*module.modules()}
        if hasattr(module, "_orig_mod") or module._compiled_call_impl is not None:
            raise TypeError(f"{name or 'model'} is compiled, so blocks cannot have hooks in it")
        for block in parts & {*blocks} if isinstance(module, FUSED) else ():
            raise TypeError(
                f"{names[block]} in blocks is part of a {type(module).__name__}, which computes by"
                " other kernels in evaluations if it has hooks: use a module around it"
            )
        for key, parameter in module.named_parameters(recurse=False):
            owner = owners.get(parameter)
            if owner and module not in {*owner.modules()}:
                raise ValueError(
                    f"{f'{name}.{key}'.lstrip('.')} is also a parameter of {names[owner]} in"
                    " blocks; a block must not share parameters with other modules"
                )


def refuse_sharded_job(options: Mapping[str, Any]) -> None:
    """Raise NotImplementedError for arguments of Loop that a job with shard=True does not
    support."""
    if find_options(options.get("audit"), options.get("audit_action"))[0]:
        raise NotImplementedError("shard=True does not support audits; set audit to 0")
