# SPDX-License-Identifier: Apache-2.0
"""The types in which tensors are sent."""

from __future__ import annotations

from typing import Any

import torch

from ddl_horovod.common import Compressor, Int4Compressor, Int8Compressor


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
    """The compressors.

    none        no compression
    fp16        sends floating-point tensors in float16
    int8, int4  for a DistributedOptimizer: sends float32 gradients between hosts in a quarter or an
                eighth of the bytes (docs/wire.md). Horovod does not have these two
    """

    none = Compressor
    fp16 = FP16Compressor
    int8 = Int8Compressor
    int4 = Int4Compressor
