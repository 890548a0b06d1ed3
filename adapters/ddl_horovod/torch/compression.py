"""The types that tensors travel in."""

from __future__ import annotations

from typing import Any

import torch


class Compressor:
    """Changes a tensor before it is sent, and back."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """What is sent for the tensor, and what `decompress` needs."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        """The tensor in its own type."""
        return tensor


class _Half(Compressor):
    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        if not tensor.is_floating_point():
            return tensor, None
        return tensor.to(torch.float16), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, context: Any) -> torch.Tensor:
        return tensor if context is None else tensor.to(context)


class Compression:
    """`Compression.none`, and `Compression.fp16`: floating-point tensors are sent in float16."""

    none = Compressor
    fp16 = _Half
