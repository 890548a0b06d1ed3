"""The operations' gradients, as autograd knows them.

Each rank's loss is a function of all ranks' inputs. A gradient is that of the sum of the ranks'
losses, so it travels back by the operation's transpose, which all ranks call in backward.

Order. A node of autograd's graph runs before every node that was made earlier: on the CPU one
thread runs the nodes that are ready, the latest first, and what uses a node's result was made after
it. So ranks that call the same operations in forward call their transposes in the same order, the
reverse one, whatever else their graphs hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# Starts an operation on tensors without gradients: c10d's work, None if it is complete, and its
# results.
Start = Callable[..., tuple[Any, Sequence[Tensor]]]
# From the gradients of the results to those of the tensors.
Transpose = Callable[..., Sequence[Tensor | None]]


def start(
    operation: Start, transpose: Transpose, tensors: Sequence[Tensor], outs: Sequence[Tensor] = ()
) -> tuple[Any, Sequence[Tensor]]:
    """What `operation(*tensors)` returns, the results with a gradient if a tensor has one.

    `outs`, the given memory of the results if any, get none: as with PyTorch's own functions, to
    give them where a gradient is needed is an error.
    """
    needed = any(tensor.requires_grad for tensor in (*tensors, *outs))
    if not (needed and torch.is_grad_enabled()):
        return operation(*tensors)
    if outs:
        raise RuntimeError(
            "out: a result in given memory has no gradient, but an argument requires one; leave out"
            " `out`, or call this under torch.no_grad()"
        )
    works: list[Any] = []
    results = _Operation.apply(operation, transpose, works, *tensors)
    return works[0], results


class _Operation(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, operation: Start, transpose: Transpose, works: list[Any], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.transpose = transpose
        work, results = operation(*tensors)
        works.append(work)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        return None, None, None, *ctx.transpose(*gradients)
