# SPDX-License-Identifier: Apache-2.0
"""The operations' gradients for autograd.

Each rank's loss is a function of all ranks' inputs. An operation's gradient is the gradient of the
sum of all ranks' losses. It is computed by the operation's transpose, which all ranks call in
backward.

Order. On the CPU, one thread runs the ready nodes of autograd's graph, the newest first. A node is
newer than the nodes whose results it uses. So nodes run in the reverse order of their creation.
Ranks that call the same operations in forward therefore call the transposes in the same order,
whatever else their graphs contain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# Starts an operation without gradients. Returns c10d's work (None if it is complete) and the
# results.
Start = Callable[..., tuple[Any, Sequence[Tensor]]]
# Computes the gradients of the tensors from the gradients of the results.
Transpose = Callable[..., Sequence[Tensor | None]]


def start(
    operation: Start, transpose: Transpose, tensors: Sequence[Tensor], outs: Sequence[Tensor] = ()
) -> tuple[Any, Sequence[Tensor]]:
    """Return `operation(*tensors)`, with differentiable results if a tensor requires grad.

    `outs` are the caller's tensors for the results, if any. As in PyTorch's own functions, they are
    an error if a gradient is needed.
    """
    needed = any(tensor.requires_grad for tensor in (*tensors, *outs))
    if not (needed and torch.is_grad_enabled()):
        return operation(*tensors)
    if outs:
        raise RuntimeError(
            "`out` has no gradient, but an argument requires one: omit `out`, or call this under"
            " torch.no_grad()"
        )
    works: list[Any] = []
    results = _Gradient.apply(operation, transpose, works, *tensors)
    return works[0], results


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, operation: Start, transpose: Transpose, works: list[Any], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.transpose = transpose
        work, results = operation(*tensors)
        works.append(work)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        return None, None, None, *ctx.transpose(*gradients)
