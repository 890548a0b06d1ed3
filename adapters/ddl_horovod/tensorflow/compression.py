# SPDX-License-Identifier: Apache-2.0
"""The types that tensors travel in."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ddl_horovod.common import Compressor


class _Half(Compressor):
    @staticmethod
    def compress(tensor: tf.Tensor) -> tuple[tf.Tensor, Any]:
        if not tensor.dtype.is_floating:
            return tensor, None
        return tf.cast(tensor, tf.float16), tensor.dtype

    @staticmethod
    def decompress(tensor: tf.Tensor, ctx: Any) -> tf.Tensor:
        return tensor if ctx is None else tf.cast(tensor, ctx)


class Compression:
    """`Compression.none`, and `Compression.fp16`: floating-point tensors are sent in float16."""

    none = Compressor
    fp16 = _Half
