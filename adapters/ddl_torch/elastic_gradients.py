"""The gradients of a share, in flat arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from ddl_elastic.framework import Ready
from ddl_torch.elastic_layout import Share
from ddl_torch.elastic_tensors import wide


class Gradients:
    """Those of these parameters, in buckets of about so many bytes: the last parameters' first,
    since the backward pass reaches them first. Hooks notice when all parameters of a bucket have
    their gradients; the last bucket, with which the backward pass ends, needs none."""

    def __init__(self, parameters: Sequence[nn.Parameter], bucket_bytes: float) -> None:
        self.buckets = list(_buckets(parameters, bucket_bytes))
        self._parameters = [each for bucket in self.buckets for each in bucket]
        self._direct = all(each.dtype == wide(each) and each.is_cpu for each in parameters)
        self._bucket_of = {p: number for number, b in enumerate(self.buckets[:-1]) for p in b}
        self._number = {p: number for number, p in enumerate(self._parameters, 2)}
        self._hooks = [
            each.register_post_accumulate_grad_hook(self._accumulated) for each in self._bucket_of
        ]
        # Of the backward pass that is under way.
        self._ready: Ready | None = None
        self._share: Share
        self._missing: list[set[nn.Parameter]] = []  # by bucket: those without a gradient yet
        self._filled = 0  # buckets

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()

    def compute(self, loss: Tensor, share: Share, ready: Ready | None) -> None:
        """The backward pass: fill the share's buckets, and tell which parameters were used."""
        share.numbers.fill(True)
        self._share, self._ready, self._filled = share, ready, 0
        self._missing = [set(bucket) for bucket in self.buckets[:-1]] if ready else []
        try:
            loss.backward()
        finally:
            self._ready = None
        while self._filled < len(self.buckets):
            self._fill()

    def _accumulated(self, parameter: nn.Parameter) -> None:
        if not self._ready:
            return
        if self._bucket_of[parameter] < self._filled:
            raise NotImplementedError(
                f"a parameter of shape {tuple(parameter.shape)} got two gradients in one backward"
                " pass; use checkpoints with use_reentrant=False, or an infinite bucket_bytes"
            )
        self._missing[self._bucket_of[parameter]].discard(parameter)
        filled = self._filled
        while self._filled < len(self._missing) and not self._missing[self._filled]:
            self._fill()
        if self._filled > filled:
            self._ready(self._share, self._filled)

    def _fill(self) -> None:
        """The next bucket."""
        bucket, section = self.buckets[self._filled], self._share.gradients[self._filled]
        self._filled += 1
        gradients = [each.grad for each in bucket]
        try:
            torch._foreach_copy_(section.parts, gradients)
        except (TypeError, RuntimeError):  # to look at each of them before would take longer
            self._fill_one_by_one(bucket, section.parts)

    def _fill_one_by_one(self, bucket: Sequence[nn.Parameter], parts: Sequence[Tensor]) -> None:
        """With parameters that were not used."""
        for parameter, part in zip(bucket, parts, strict=True):
            if parameter.grad is None:
                part.zero_()
                self._share.numbers[self._number[parameter]] = False
            elif parameter.grad.is_sparse:
                raise NotImplementedError("a gradient is sparse; elastic training needs dense ones")
            else:
                part.copy_(parameter.grad)

    def apply(self, result: Share, weight: float) -> None:
        """Set the gradients, of those parameters that were used in any share."""
        parts, used = result.gradient_parts, result.numbers.tolist()[2:]
        if weight != 1:
            for section in result.gradients:
                section.whole /= weight
        if not self._direct:
            parts = [part.to(each) for part, each in zip(parts, self._parameters, strict=True)]
        for parameter, part, is_used in zip(self._parameters, parts, used, strict=True):
            parameter.grad = part if is_used else None


def _buckets(parameters: Sequence[nn.Parameter], limit: float) -> Iterator[list[nn.Parameter]]:
    """Of parameters whose gradients are added in the same type."""
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
