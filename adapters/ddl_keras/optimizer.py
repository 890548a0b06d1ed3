# SPDX-License-Identifier: Apache-2.0
"""Training any Keras optimizer on all ranks' gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras

from ddl_core.adapter import check_gradients
from ddl_core.errors import InvalidArgument
from ddl_keras._adapter import adapter, among

if TYPE_CHECKING:
    from ddl_core.names import Compression, GradientOp

_COMPRESSED = {None: None, "f16": "float16", "bf16": "bfloat16"}
_SETTINGS = "_ddl_settings"
_SCALING = keras.optimizers.LossScaleOptimizer


def DistributedOptimizer(
    optimizer: keras.optimizers.Optimizer | str,
    *,
    op: GradientOp = "average",
    compression: Compression | None = None,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int | None = None,
    comm: Any = None,
) -> keras.optimizers.Optimizer:
    """Make the optimizer apply the gradients of all ranks, and return it.

        model.compile(ddl.DistributedOptimizer(keras.optimizers.Adam(1e-3)), loss)

    optimizer        any optimizer, including a LossScaleOptimizer, or its name. Under the global
                     dtype policy mixed_float16 any other one is wrapped in a LossScaleOptimizer, as
                     Model.compile does; a custom training loop calls its scale_loss
    op               "average" or "sum" of the ranks' gradients
    compression      "f16" or "bf16": gradients of float32 and float64 are sent in that type
    sparse_as_dense  for TensorFlow's IndexedSlices: see ddl_tensorflow.allreduce_gradients
    backward_passes_per_step  number of batches whose gradients are accumulated before the optimizer
                     applies their average; sets its gradient_accumulation_steps (with loss scaling
                     that of the inner_optimizer)
    comm             of `split` or `subset`: the ranks whose gradients are applied; None: all. On
                     TensorFlow and JAX

    All ranks do the same number of steps. Gradients are reduced as one group per step, before
    clipping; with accumulation, on TensorFlow and PyTorch, only in the steps that apply them. With
    loss scaling they are reduced for every batch, so that all ranks find the same batches finite;
    only those are accumulated and count for backward_passes_per_step. A saved model has the
    original optimizer, so it loads without libddl; `DistributedOptimizer(model.optimizer)` then
    continues from its state.

    Raises ddl_core.errors.InvalidArgument for arguments out of range; later the training function
    raises what the adapter's grouped_allreduce does.
    """
    check_gradients(op, compression)
    optimizer = keras.optimizers.get(optimizer)
    if hasattr(optimizer, _SETTINGS) or hasattr(_innermost(optimizer), _SETTINGS):
        raise InvalidArgument("optimizer: is a DistributedOptimizer already")
    if backward_passes_per_step is not None:
        _accumulate(_innermost(optimizer), backward_passes_per_step)
    if _mixed_float16() and not isinstance(optimizer, _SCALING):
        # Model.compile would wrap ours in one, which would skip steps on one rank alone.
        optimizer = _SCALING(optimizer, name="loss_scale_optimizer")
    settings = {
        "op": op,
        "compression": compression,
        "sparse_as_dense": sparse_as_dense,
        "options": among(comm),
    }
    # A trained optimizer keeps its state: only its class changes.
    optimizer.__class__ = _distributed(type(optimizer))
    object.__setattr__(optimizer, _SETTINGS, settings)
    return optimizer


def refuse_scaled(optimizer: keras.optimizers.Optimizer | None) -> None:
    """InvalidArgument for a DistributedOptimizer in a LossScaleOptimizer, which looks for
    infinities in the rank's own gradients, and so would skip steps in which others wait."""
    inner = getattr(optimizer, "inner_optimizer", None)
    if hasattr(inner, _SETTINGS) and not hasattr(optimizer, _SETTINGS):
        raise InvalidArgument(
            "optimizer: is a LossScaleOptimizer around a DistributedOptimizer, but must be a"
            " DistributedOptimizer around a LossScaleOptimizer (for a model of dtype mixed_float16,"
            " compile it with DistributedOptimizer(LossScaleOptimizer(...)))"
        )


def reduce_gradients(
    gradients: Sequence[Any],
    op: str,
    compression: str | None,
    sparse_as_dense: bool,
    options: Mapping[str, Any],
) -> list[Any]:
    """All ranks' gradients, None where there are none."""
    if keras.backend.backend() == "tensorflow":  # it has sparse gradients
        reduced: list[Any] = adapter.allreduce_gradients(
            gradients,
            op=op,
            compression=compression,
            sparse_as_dense=sparse_as_dense,
            **options,
        )
        return reduced
    result = list(gradients)
    indices = [index for index, gradient in enumerate(result) if gradient is not None]
    dtype = _COMPRESSED[compression]
    sent = []
    for index in indices:
        gradient = result[index]
        narrowed = dtype and keras.backend.standardize_dtype(gradient.dtype) in (
            "float32",
            "float64",
        )
        sent.append(keras.ops.cast(gradient, dtype) if narrowed else gradient)
    together = adapter.grouped_allreduce(sent, op, **options)
    for index, reduced in zip(indices, together, strict=True):
        result[index] = keras.ops.cast(reduced, result[index].dtype)
    return result


def _innermost(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """The optimizer that accumulates and applies gradients: the inner one of a
    LossScaleOptimizer."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def _mixed_float16() -> bool:
    return bool(keras.config.dtype_policy().name == "mixed_float16")


def _accumulate(optimizer: keras.optimizers.Optimizer, passes: int) -> None:
    if passes < 1:
        raise InvalidArgument(f"backward_passes_per_step: {passes} is below 1")
    if optimizer.built:
        raise InvalidArgument("backward_passes_per_step: the optimizer is built already")
    if optimizer.gradient_accumulation_steps not in (None, passes):
        raise InvalidArgument(
            f"backward_passes_per_step: is {passes}, but the optimizer's"
            f" gradient_accumulation_steps is {optimizer.gradient_accumulation_steps}"
        )
    optimizer.gradient_accumulation_steps = passes if passes > 1 else None


def _distributed(base: type) -> type:
    """A subclass that reduces gradients. Keras saves it by the name of its base, which it has."""
    scales = issubclass(base, _SCALING)  # its inner optimizer accumulates

    class Distributed(base):  # type: ignore[misc, valid-type]
        def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
            # First, so that all ranks see the same infinities (loss scaling), norms (clipping)
            # and weights.
            if scales or not self.gradient_accumulation_steps:
                grads = reduce_gradients(grads, **getattr(self, _SETTINGS))
            super().apply(grads, trainable_variables)

        def stateless_apply(self, optimizer_variables: Any, grads: Any, variables: Any) -> Any:
            # Loss scaling on JAX does not call `apply`.
            if base.stateless_apply is not keras.optimizers.Optimizer.stateless_apply:
                grads = reduce_gradients(grads, **getattr(self, _SETTINGS))
            return super().stateless_apply(optimizer_variables, grads, variables)

        def _clip_gradients(self, grads: Sequence[Any]) -> Any:
            # The first step with accumulated gradients.
            if self.gradient_accumulation_steps:
                grads = reduce_gradients(grads, **getattr(self, _SETTINGS))
            return super()._clip_gradients(grads)

    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(Distributed, name, getattr(base, name))
    return Distributed
