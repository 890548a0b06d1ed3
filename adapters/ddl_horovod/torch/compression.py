# SPDX-License-Identifier: Apache-2.0
"""The types in which tensors are sent."""

from __future__ import annotations

from typing import Any

import torch

from ddl_horovod.common import Compressor


class FP16Compressor(Compressor):
    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        if not tensor.is_floating_point():
            return tensor, None
        return tensor.to(torch.float16), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor if ctx is None else tensor.to(ctx)


class Compression:
    """The compressors `none`, and `fp16`, which sends floating-point tensors in float16."""

    none = Compressor
    fp16 = FP16Compressor
