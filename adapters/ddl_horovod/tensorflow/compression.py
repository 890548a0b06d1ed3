# SPDX-License-Identifier: Apache-2.0
"""The compressors, which convert tensors to the type in which they are sent."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ddl_horovod.common import Compressor


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
    """The compressors `none`, and `fp16`, which sends floating-point tensors in float16."""

    none = Compressor
    fp16 = FP16Compressor
