# SPDX-License-Identifier: Apache-2.0
"""The forward and the backward of a block: interruptions, and the tensors of a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import update_wrapper
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves


class BlockForward:
    """A module's forward that calls a function if an exception such as KeyboardInterrupt ends it.
    PyTorch calls hooks with always_call=True only after exceptions that derive from Exception.

    A copy of the module has a copy of this object, with the forward of that copy.
    """

    def __init__(self, module: nn.Module, interrupted: Callable[[], object]) -> None:
        self._forward, self._interrupted = module.forward, interrupted
        update_wrapper(self, module.forward)

    def __call__(self, *args: Any, **options: Any) -> Any:
        try:
            return self._forward(*args, **options)
        except Exception:
            raise
        except BaseException:
            self._interrupted()
            raise


def is_in_backward() -> bool:
    """Return True in a backward pass of this thread."""
    return torch._C._current_graph_task_id() != -1


def find_tensors(values: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested containers and dataclasses."""
    for each in tree_leaves(values):
        if isinstance(each, Tensor):
            yield each
        elif is_dataclass(each) and not isinstance(each, type):
            yield from find_tensors([getattr(each, field.name) for field in fields(each)])
