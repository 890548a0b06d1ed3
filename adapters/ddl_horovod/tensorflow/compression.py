# SPDX-License-Identifier: Apache-2.0
"""The compressors, which convert tensors to the type in which they are sent."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ddl_horovod.common import Compressor, Int4Compressor, Int8Compressor


class FP16Compressor(Compressor):
    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        if not tensor.dtype.is_floating:
            return tensor, None
        return tf.cast(tensor, tf.float16), tensor.dtype

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        return tensor if ctx is None else tf.cast(tensor, ctx)


class Compression:
    """The compressors.

    none        no compression
    fp16        sends floating-point tensors in float16
    int8, int4  for a DistributedOptimizer of Keras: sends float32 gradients between hosts in a
                quarter or an eighth of the bytes (docs/wire.md). Horovod does not have these two
    """

    none = Compressor
    fp16 = FP16Compressor
    int8 = Int8Compressor
    int4 = Int4Compressor
