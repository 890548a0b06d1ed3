# SPDX-License-Identifier: Apache-2.0
"""The gradients of a share, in flat arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from ddl_elastic.frameworks.protocol import Ready
from ddl_torch.elastic.shares import Share, ShareArrays, Shares
from ddl_torch.elastic.tensors import wide


class Gradients:
    """The gradients of these parameters, in buckets of about `bucket_bytes` bytes. The first bucket
    has the last parameters, which the backward pass reaches first. Hooks detect that all gradients
    of a bucket are computed. The last bucket has no hooks: it is complete when the pass ends."""

    def __init__(self, parameters: Sequence[nn.Parameter], bucket_bytes: float) -> None:
        self.buckets = list(_buckets(parameters, bucket_bytes))
        self.parameters = [each for bucket in self.buckets for each in bucket]
        self._direct = all(each.dtype == wide(each) and each.is_cpu for each in parameters)
        self._bucket_of = {p: number for number, b in enumerate(self.buckets[:-1]) for p in b}
        self._number = {p: number for number, p in enumerate(self.parameters, 2)}
        self._hooks = [
            each.register_post_accumulate_grad_hook(self._accumulated) for each in self._bucket_of
        ]
        # The fields below belong to the current backward pass.
        self._ready: Ready | None = None
        self._share: Share
        self._missing: list[set[nn.Parameter]] = []  # by bucket: parameters without gradients yet

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def compute(self, loss: Tensor, shares: Shares, ready: Ready | None) -> Share:
        """Run the backward pass. Return a share with the gradients, whose `numbers` mark the
        parameters that were used."""
        share = self._share = shares.take()
        share.numbers.fill(True)
        self._ready = ready
        self._missing = [set(bucket) for bucket in self.buckets[:-1]] if ready else []
        try:
            loss.backward()
        finally:
            self._ready = None
        while len(share.parts) < len(self.buckets):
            self._take()
        for parameter in self.parameters:
            parameter.grad = None  # changes that the program made to it would have no effect
        return share

    def _accumulated(self, parameter: nn.Parameter) -> None:
        if not self._ready:
            return
        parts = self._share.parts
        if self._bucket_of[parameter] < len(parts):
            raise NotImplementedError(
                f"a parameter of shape {tuple(parameter.shape)} got two gradients in one backward"
                " pass; use checkpoints with use_reentrant=False, or an infinite bucket_bytes"
            )
        self._missing[self._bucket_of[parameter]].discard(parameter)
        taken = len(parts)
        while len(parts) < len(self._missing) and not self._missing[len(parts)]:
            self._take()
        if len(parts) > taken:
            self._ready(self._share, len(parts))

    def _take(self) -> None:
        """Append the gradients of the next bucket to the share."""
        bucket = self.buckets[len(self._share.parts)]
        gradients = [each.grad for each in bucket]
        if not self._direct or not all(map(_is_plain, gradients)):
            gradients = [*map(self._convert, bucket)]
        self._share.parts.append(gradients)

    def _convert(self, parameter: nn.Parameter) -> Tensor:
        if parameter.grad is None:
            self._share.numbers[self._number[parameter]] = False
            return torch.zeros(parameter.shape, dtype=wide(parameter))
        if parameter.grad.is_sparse:
            raise NotImplementedError(
                "a gradient is sparse; elastic training supports only dense gradients"
            )
        return parameter.grad.to("cpu", wide(parameter)).contiguous()

    def apply(self, result: ShareArrays, weight: float, factor: float = 1.0) -> None:
        """Set the gradients of the parameters that any share used, and clear the other gradients.
        The gradients are divided by `weight` and then multiplied by `factor`."""
        parts, used = [*chain.from_iterable(result.parts)], result.numbers.tolist()[2:]
        if weight != 1:
            for section in result.gradients:
                section.whole /= weight
        if factor != 1:
            for section in result.gradients:
                section.whole *= factor
        if not self._direct:
            parts = [part.to(each) for part, each in zip(parts, self.parameters, strict=True)]
        for parameter, part, is_used in zip(self.parameters, parts, used, strict=True):
            parameter.grad = part if is_used else None


def _is_plain(gradient: Tensor | None) -> bool:
    return gradient is not None and not gradient.is_sparse and gradient.is_contiguous()


def _buckets(parameters: Sequence[nn.Parameter], limit: float) -> Iterator[list[nn.Parameter]]:
    """Yield buckets of parameters whose gradients are added in the same type."""
    part: dict[torch.dtype, list[nn.Parameter]] = {}
    held: dict[torch.dtype, int] = {}
    for parameter in reversed(parameters):
        kind = wide(parameter)
        part.setdefault(kind, []).append(parameter)
        held[kind] = held.get(kind, 0) + parameter.numel() * kind.itemsize
        if held[kind] >= limit:
            yield part.pop(kind)
            del held[kind]
    yield from part.values()
