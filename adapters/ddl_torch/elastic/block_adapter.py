# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs of PyTorch whose parameters are sharded, too: elastic.Job(..., shard=True,
blocks=model.layers)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ddl_elastic.frameworks import protocol
from ddl_elastic.frameworks.protocol import Array
from ddl_elastic.sharded.tables import Table
from ddl_torch.elastic.blocks import ModelBlocks
from ddl_torch.elastic.pages import Pages
from ddl_torch.elastic.refusals import refuse_blocks
from ddl_torch.elastic.shard_set import gather_tensor
from ddl_torch.elastic.sharded import ShardedAdapter
from ddl_torch.elastic.shares import Share


class BlockAdapter(ShardedAdapter):
    """The PyTorch adapter with a sharded optimizer and blocks, see blocks.py."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        blocks: Sequence[nn.Module],
        **options: Any,
    ) -> None:
        super().__init__(model, optimizer, **options)
        refuse_blocks(model, blocks)
        self.blocks = self._blocks = ModelBlocks(model, blocks, self.shards)
        self._pages: list[Pages] = []  # by array

    def _store(self, array: Tensor) -> Tensor:
        self._pages.append(Pages(array))
        return self._pages[-1].tensor

    def _flatten(self) -> None:
        super()._flatten()
        self._blocks.lay_out(self._pages, self.lengths(), self._at)

    def _shard(self) -> None:
        super()._shard()
        self._blocks.gathered()

    def install(self, shards: Any) -> None:
        super().install(shards)
        self._blocks.hold(each.piece for each in shards.shards)

    def backward(
        self, loss: Tensor, ready: protocol.Ready | None = None, weight: float | Tensor = 1.0
    ) -> Share:
        try:
            return super().backward(loss, ready, weight)
        finally:
            self._blocks.end()

    def stream(self, table: Table, gather: Callable[[str, str], Array]) -> protocol.StreamedState:
        found = super().stream(table, gather)
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            if parameter in self._blocks and not self._blocks.are_whole:
                del found[f"model.{name}"]
                key = "{}.{}".format(*self._at[parameter])
                make = partial(gather_tensor, gather, key, "", parameter.shape)
                found.sources[f"model.{name}"] = make
        return found
