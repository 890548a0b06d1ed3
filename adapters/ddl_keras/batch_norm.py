# SPDX-License-Identifier: Apache-2.0
"""Batch normalization over the batches of all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from ddl_keras._adapter import adapter, among
from ddl_keras.copies import copied_by, saved_as_base


class SyncBatchNormalization(keras.layers.BatchNormalization):
    """keras.layers.BatchNormalization that in training normalizes by the mean and variance of all
    ranks' batches together, so that small batches per rank train as one large one. Batches may
    differ in size.

    comm    of `split` or `subset`: the ranks that normalize together; None: all
    others  those of the base class

    All ranks call it in training. Outside of training it is its base class, and nothing is sent.
    Saved models name the base class, so they load without libddl. Copies of the layer normalize
    together as it does.
    """

    _ddl_among: Mapping[str, Any] = {}

    def __init__(self, *arguments: Any, comm: Any = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if comm is not None:
            _synchronize(self, among(comm))

    def __reduce__(self) -> tuple[Any, ...]:
        return copied_by(super().__reduce__(), _synchronize, self._ddl_among)

    def _moments(self, inputs: Any, mask: Any) -> tuple[Any, Any]:
        axes = self._reduction_axes
        if mask is None:
            weights = ops.ones_like(inputs)
        else:
            weights = ops.cast(
                ops.broadcast_to(ops.expand_dims(mask, -1), ops.shape(inputs)), inputs.dtype
            )
        own = ops.sum(weights, axes)
        # The mean first, then the squared differences from it, which loses no digits.
        total = adapter.allreduce(
            ops.concatenate([own, ops.sum(inputs * weights, axes)]), **self._ddl_among
        )
        count, sums = ops.split(total, 2)
        count = ops.maximum(count, keras.backend.epsilon())
        mean = sums / count
        shape = [1] * len(inputs.shape)
        shape[self.axis] = inputs.shape[self.axis]
        squares = ops.square(inputs - ops.reshape(mean, shape)) * weights
        return mean, adapter.allreduce(ops.sum(squares, axes), **self._ddl_among) / count


def _synchronize(layer: Any, options: Mapping[str, Any]) -> Any:
    """Make a layer normalize with the ranks that the options name. Only its class changes, by
    which its copies know them."""

    class Synchronized(SyncBatchNormalization):
        _ddl_among = options

    layer.__class__ = saved_as_base(Synchronized)
    return layer


saved_as_base(SyncBatchNormalization)
