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
    """A keras.layers.BatchNormalization that normalizes by the mean and variance of all ranks'
    batches in training, so that small batches per rank train like one large batch. Batches may
    differ in size.

    comm    a communicator of `split` or `subset`: the ranks that normalize together; None: all
            ranks
    others  the arguments of the base class

    All ranks call it in training. Outside of training it behaves like its base class, and sends
    nothing. Saved models name the base class, so they load without libddl. Copies of the layer also
    normalize with all ranks.
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
        # The mean first, then the squared differences from it, which loses no precision.
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
    """Make a layer normalize with the ranks in the options. Only its class changes, which its
    copies share."""

    class Synchronized(SyncBatchNormalization):
        _ddl_among = options

    layer.__class__ = saved_as_base(Synchronized)
    return layer


saved_as_base(SyncBatchNormalization)
