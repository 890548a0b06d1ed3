# SPDX-License-Identifier: Apache-2.0
"""Reduce-scatters of fully_shard's gradients that send fewer bytes between hosts, with error
feedback."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

from ddl_torch.packing import is_of_rank, require_host, start
from ddl_torch.world import adapter

_OPS = ((dist.ReduceOp.AVG, "average"), (dist.ReduceOp.SUM, "sum"))


class ShardedGradientCompression:
    """The state of a model of fully_shard whose gradients `compress_gradients` packs.

    Each rank has a residual of its own gradients before they are scattered: as many elements as
    the model has parameters, not only as the rank's shards.
    """

    def __init__(self, model: Any, compression: str) -> None:
        self._residuals: dict[str, Tensor] = {}  # by the name of a module
        self._wire = compression
        for name, module in model.named_modules():
            if isinstance(module, FSDPModule):
                module.set_custom_reduce_scatter(_ReduceScatter(self, name))

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state, with a tensor for each module of fully_shard. Each rank saves
        its own."""
        kept = {name: each.clone() for name, each in self._residuals.items()}
        return {"rank": dist.get_rank(), "size": dist.get_world_size(), "residuals": kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with a state of `state_dict`, of the same rank and model. Warns and begins with
        zeros if another rank saved it, or there were more or fewer ranks."""
        known = is_of_rank(state, dist.get_rank(), dist.get_world_size())
        saved = state["residuals"] if known else {}
        self._residuals = {name: each.clone() for name, each in saved.items()}

    def reduce(self, name: str, output: Tensor, input: Tensor, group: Any, op: Any) -> Any:
        """Start to reduce and scatter the gradients of a module. Return c10d's work."""
        require_host(self._wire, [input])
        how = next((how for known, how in _OPS if op == known), None)
        if how is None:
            raise adapter().InvalidArgument(
                f"compression is {self._wire}, which does not support set_gradient_divide_factor"
            )
        residual = self._residuals.get(name)
        if residual is None or residual.numel() != input.numel():  # other parameters have gradients
            residual = self._residuals[name] = torch.zeros_like(input)
        return start(group, input, residual, how, self._wire, output)


class _ReduceScatter(DefaultReduceScatter):
    def __init__(self, state: ShardedGradientCompression, name: str) -> None:
        self._state, self._name = state, name

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> Any:
        if input_tensor.dtype != torch.float32:
            return super().__call__(output_tensor, input_tensor, group, op, async_op)
        work = self._state.reduce(self._name, output_tensor, input_tensor, group, op)
        if async_op:
            return work
        work.wait()
        return None
