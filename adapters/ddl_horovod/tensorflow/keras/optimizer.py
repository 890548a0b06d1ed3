# SPDX-License-Identifier: Apache-2.0
"""Optimizers of Keras that apply the gradients of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from ddl_horovod.common import Adasum, Average, Reduction
from ddl_horovod.tensorflow.compression import Compression
from ddl_horovod.tensorflow.training import Reducer
from ddl_horovod.tensorflow.world import global_process_set
from ddl_horovod.world import ProcessSet


def DistributedOptimizer(
    optimizer: keras.optimizers.Optimizer,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Reduction = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Have an optimizer of Keras apply the combined gradients of all members, and return it.

    compression                   Compression.fp16 sends gradients in float16
    sparse_as_dense               make tf.IndexedSlices dense first
    gradient_predivide_factor     with Average: gradients are divided by it before they are added,
                                  and by the rest of the number of members after
    op                            Average or Sum
    backward_passes_per_step      number of batches whose gradients are added before the optimizer
                                  applies them
    average_aggregated_gradients  apply the average of these batches' gradients instead
    num_groups, groups            checked; all dense gradients travel together
    scale_local_gradients         divide gradients of local variables by the number of members

    It has register_local_var. name and the devices are ignored. A saved model has the original
    optimizer. ValueError for options that conflict, and for loss scaling, which
    ddl_keras.DistributedOptimizer serves.
    """
    if op == Adasum:
        raise ValueError("op: Adasum is not served for optimizers of Keras")
    scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if scaled or keras.config.dtype_policy().name == "mixed_float16":
        raise ValueError("optimizer: with loss scaling use ddl_keras.DistributedOptimizer")
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step: {backward_passes_per_step} is below 1")
    reducer = Reducer(
        *(compression, sparse_as_dense, op, gradient_predivide_factor, num_groups, groups),
        *(process_set, scale_local_gradients),
    )
    if backward_passes_per_step > 1:
        if optimizer.built:
            raise ValueError("backward_passes_per_step: the optimizer is built already")
        optimizer.gradient_accumulation_steps = backward_passes_per_step
    factor = 1 if average_aggregated_gradients else backward_passes_per_step
    if not hasattr(optimizer, "_reducer"):
        optimizer.__class__ = _distributed(type(optimizer))
    for attribute, value in (("_reducer", reducer), ("_factor", factor)):
        object.__setattr__(optimizer, attribute, value)  # not to be tracked by Keras
    return optimizer


def _distributed(base: type) -> type:
    """A subclass that combines gradients. Keras saves it by the name of its base, which it has."""

    class Distributed(base):  # type: ignore[misc, valid-type]
        def register_local_var(self, var: Any) -> None:
            self._reducer.register_local(var)

        def _backend_apply_gradients(self, grads: Sequence[Any], trainable_variables: Any) -> None:
            if self.gradient_accumulation_steps:
                object.__setattr__(self, "_applied", list(trainable_variables))
            else:
                grads = self._reducer.reduce(grads, trainable_variables)
            super()._backend_apply_gradients(grads, trainable_variables)

        def _clip_gradients(self, grads: Sequence[Any]) -> Any:
            # With accumulation: the first step that has the accumulated gradients' average.
            if self.gradient_accumulation_steps:
                grads = self._reducer.reduce([g * self._factor for g in grads], self._applied)
            return super()._clip_gradients(grads)

    for attribute in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(Distributed, attribute, getattr(base, attribute))
    return Distributed
