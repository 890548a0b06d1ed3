# SPDX-License-Identifier: Apache-2.0
"""Keras optimizers that apply the gradients of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from ddl_horovod.common import Adasum, Average, Reduction
from ddl_horovod.tensorflow.compression import Compression
from ddl_horovod.tensorflow.training import Reducer
from ddl_horovod.tensorflow.world import global_process_set
from ddl_horovod.world import ProcessSet
from ddl_keras.copies import copied_by, saved_as_base
from ddl_keras.packing import add_residuals, reduce_packed, with_residuals

_OPTIMIZER = keras.optimizers.Optimizer


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
    """Make a Keras optimizer apply the combined gradients of all members, and return it.

    compression                   Compression.fp16 sends gradients in float16. Compression.int8 or
                                  int4 sends dense float32 gradients between hosts in a quarter or
                                  an eighth of the bytes; the optimizer's variables then contain
                                  this rank's rounding errors, see docs/wire.md
    sparse_as_dense               make tf.IndexedSlices dense first
    gradient_predivide_factor     f: with Average, divide gradients by f before they are added, and
                                  by size / f after
    op                            Average or Sum
    backward_passes_per_step      number of batches whose gradients are added before the optimizer
                                  applies them
    average_aggregated_gradients  apply the average of these batches' gradients instead
    num_groups, groups            checked but not used; all dense gradients are sent together
    scale_local_gradients         divide gradients of local variables by the number of members

    The result has a method register_local_var. name and the devices are ignored. Copies (by copy,
    pickle, from_config, or serialize and deserialize) also combine gradients; copying raises
    ValueError if a variable is local. A saved model has the original optimizer. A MultiOptimizer
    combines gradients in every batch. Raises ValueError for options that conflict, and for loss
    scaling, which ddl_keras.DistributedOptimizer supports.
    """
    if op == Adasum:
        raise ValueError("op is Adasum; must be Average or Sum for optimizers of Keras")
    scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if scaled or keras.config.dtype_policy().name == "mixed_float16":
        raise ValueError("optimizer uses loss scaling: use ddl_keras.DistributedOptimizer instead")
    if backward_passes_per_step < 1:
        raise ValueError(
            f"backward_passes_per_step is {backward_passes_per_step}; must be at least 1"
        )
    reducer = Reducer(
        *(compression, sparse_as_dense, op, gradient_predivide_factor, num_groups, groups),
        *(process_set, scale_local_gradients),
    )
    if reducer.wire and _delegates(_original(optimizer)):
        raise ValueError(
            f"compression is Compression.{reducer.wire}, which does not support"
            f" {type(optimizer).__name__}, because it has its own way of applying gradients; use"
            " fp16"
        )
    if backward_passes_per_step > 1:
        appliers = getattr(optimizer, "optimizers", [optimizer])  # of a MultiOptimizer
        if not appliers:
            raise ValueError(
                "backward_passes_per_step: this MultiOptimizer creates its optimizers later; pass"
                " gradient_accumulation_steps to them instead"
            )
        if any(each.built for each in appliers):
            raise ValueError(
                "backward_passes_per_step cannot be set: the optimizer is already built"
            )
        for each in appliers:
            each.gradient_accumulation_steps = backward_passes_per_step
    factor = 1 if average_aggregated_gradients else backward_passes_per_step
    return _distribute(optimizer, (reducer, factor))


def _distribute(optimizer: Any, options: tuple[Reducer, int]) -> Any:
    """Make an optimizer combine gradients. It keeps its state, because only its class changes."""
    optimizer.__class__ = _distributed(_original(optimizer), *options)
    if optimizer.built and hasattr(optimizer, "_ddl_residuals"):
        add_residuals(optimizer)
    return optimizer


def _original(optimizer: Any) -> Any:
    return getattr(type(optimizer), "_original", type(optimizer))


def _delegates(base: Any) -> bool:
    """Return True for an optimizer that applies gradients in its own way, such as a
    MultiOptimizer, which delegates them to other optimizers."""
    own: bool = base._backend_apply_gradients is not _OPTIMIZER._backend_apply_gradients
    return own or base.apply is not _OPTIMIZER.apply


def _distributed(base: Any, reducer: Reducer, factor: int) -> type:
    """Return a subclass of `base` that combines gradients. It has the name of `base`, by which
    Keras saves it."""
    delegates, original, process_set = _delegates(base), base, reducer.process_set
    if reducer.wire and process_set.included():
        base = with_residuals(base, process_set.rank(), process_set.size())

    class Combining(base):
        _original, _reducer, _factor = original, reducer, factor

        def __setattr__(self, name: str, value: Any) -> None:
            # An optimizer that wraps this one sets its loss_scale_factor to None. Model.compile
            # wraps it if the model's dtype is mixed_float16: single ranks would then skip steps.
            resets = name == "loss_scale_factor" and value is None
            if resets and {name, f"_{name}"} & {*vars(self)}:
                raise ValueError(
                    "another optimizer wraps this DistributedOptimizer: wrap the MultiOptimizer"
                    " instead, or use ddl_keras.DistributedOptimizer for loss scaling"
                )
            super().__setattr__(name, value)

        def register_local_var(self, var: Any) -> None:
            reducer.register_local(var)

        def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
            if delegates:
                variables = trainable_variables or self._trainable_variables
                scaled = [each if each is None else each * factor for each in grads]
                grads = self._combine(scaled, variables)
            super().apply(grads, trainable_variables)

        def _backend_apply_gradients(self, grads: Sequence[Any], trainable_variables: Any) -> None:
            if self.gradient_accumulation_steps:
                object.__setattr__(self, "_applied", list(trainable_variables))
            elif not delegates:
                grads = self._combine(grads, trainable_variables)
            super()._backend_apply_gradients(grads, trainable_variables)

        def _clip_gradients(self, grads: Sequence[Any]) -> Any:
            # With accumulation, the averaged gradients are first available here.
            if self.gradient_accumulation_steps and not delegates:
                grads = self._combine([g * factor for g in grads], self._applied)
            return super()._clip_gradients(grads)

        def _combine(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
            sent = reducer.to_pack(grads, variables)
            packed = reduce_packed(self, sent, variables, reducer.reduce_flat)
            others = [None if n in packed else each for n, each in enumerate(grads)]
            reduced = reducer.reduce(others, variables)
            return [packed.get(n, each) for n, each in enumerate(reduced)]

        @classmethod
        def from_config(cls, *arguments: Any, **options: Any) -> Any:
            reducer.check_copy()
            return super().from_config(*arguments, **options)

        def __reduce__(self) -> tuple[Any, ...]:
            reducer.check_copy()
            return copied_by(super().__reduce__(), _distribute, (reducer, factor))

    return saved_as_base(Combining)
