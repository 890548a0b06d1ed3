# SPDX-License-Identifier: Apache-2.0
"""The part of the adapter that ddl_elastic/hidden/ uses to search for hidden state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ddl_torch.elastic.rounds import Rounds


class Searched:
    """A base class of the adapter with the methods for this search."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss_function: Callable[..., Tensor] | None
    _also: dict[str, Any]
    _rounds: Rounds | None

    def held(self) -> list[Any]:
        """Return the parts of the job's state."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        optimizers = filter(None, [self.optimizer, self._outer])
        return [*tensors, *optimizers, *self._also.values()]

    @property
    def walked(self) -> list[Any]:
        """The objects to search for state that is not part of the job's state."""
        return [self.model, self.loss_function] if self.loss_function else [self.model]

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the parameters."""
        return [tuple(each.shape) for each in self.model.parameters()]

    @property
    def _outer(self) -> torch.optim.Optimizer | None:
        return self._rounds.outer if self._rounds else None
