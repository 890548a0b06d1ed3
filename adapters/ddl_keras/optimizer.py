"""Training any Keras optimizer on all ranks' gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from ddl_core.errors import InvalidArgument
from ddl_keras._adapter import adapter

_WIRE = {None: None, "f16": "float16", "bf16": "bfloat16"}
_SETTINGS = "_ddl_settings"
_SCALING = keras.optimizers.LossScaleOptimizer


def DistributedOptimizer(
    optimizer: keras.optimizers.Optimizer | str,
    *,
    op: str = "average",
    compression: str | None = None,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int | None = None,
) -> keras.optimizers.Optimizer:
    """Make the optimizer apply the gradients of all ranks, and return it.

        model.compile(ddl.DistributedOptimizer(keras.optimizers.Adam(1e-3)), loss)

    optimizer        of any kind, a LossScaleOptimizer included, or its name. Where the global dtype
                     policy is mixed_float16, one that is none is put into one, as Model.compile
                     would do it: a training loop of one's own calls its scale_loss
    op               "average" or "sum" of the ranks' gradients
    compression      "f16" or "bf16": gradients of float32 and float64 travel in that type
    sparse_as_dense  for TensorFlow's IndexedSlices: see ddl_tensorflow.allreduce_gradients
    backward_passes_per_step  so many batches' gradients are added up before the optimizer applies
                     their average; sets its gradient_accumulation_steps, which does the same (with
                     loss scaling that of the inner_optimizer)

    All ranks do the same number of steps. Gradients travel as one group per step, before clipping;
    with accumulation, on TensorFlow and PyTorch, only in the steps that apply them. With loss
    scaling they travel with every batch, so that all ranks find the same ones to be finite; only
    those are added up and count for backward_passes_per_step. In a saved model it is the optimizer
    that it was, so the model loads where there is no libddl; where there is,
    `DistributedOptimizer(model.optimizer)` goes on from its state.

    Raises ddl_core.errors.InvalidArgument for arguments out of range; later the training function
    raises what the adapter's grouped_allreduce does.
    """
    if op not in ("average", "sum"):
        raise InvalidArgument(f"op: {op!r} is neither average nor sum")
    if compression not in _WIRE:
        raise InvalidArgument(f"compression: {compression!r} is none of None, f16, bf16")
    optimizer = keras.optimizers.get(optimizer)
    if hasattr(optimizer, _SETTINGS) or hasattr(_innermost(optimizer), _SETTINGS):
        raise InvalidArgument("optimizer: is a DistributedOptimizer already")
    if backward_passes_per_step is not None:
        _accumulate(_innermost(optimizer), backward_passes_per_step)
    if _mixed_float16() and not isinstance(optimizer, _SCALING):
        # Model.compile would put ours into one, which would skip steps on one rank alone.
        optimizer = _SCALING(optimizer, name="loss_scale_optimizer")
    settings = {"op": op, "compression": compression, "sparse_as_dense": sparse_as_dense}
    # One that was trained already keeps its state: only its class changes.
    optimizer.__class__ = _distributed(type(optimizer))
    object.__setattr__(optimizer, _SETTINGS, settings)
    return optimizer


def refuse_scaled(optimizer: keras.optimizers.Optimizer | None) -> None:
    """InvalidArgument for a DistributedOptimizer in a LossScaleOptimizer, which looks for
    infinities in the rank's own gradients, and so would skip steps that the others wait in."""
    inner = getattr(optimizer, "inner_optimizer", None)
    if hasattr(inner, _SETTINGS) and not hasattr(optimizer, _SETTINGS):
        raise InvalidArgument(
            "optimizer: is a LossScaleOptimizer around a DistributedOptimizer, but must be a"
            " DistributedOptimizer around a LossScaleOptimizer (for a model of dtype mixed_float16,"
            " compile it with DistributedOptimizer(LossScaleOptimizer(...)))"
        )


def reduce_gradients(
    gradients: Sequence[Any], op: str, compression: str | None, sparse_as_dense: bool
) -> list[Any]:
    """All ranks' gradients, None where there are none."""
    if keras.backend.backend() == "tensorflow":  # which has sparse ones
        reduced: list[Any] = adapter.allreduce_gradients(
            gradients, op=op, compression=compression, sparse_as_dense=sparse_as_dense
        )
        return reduced
    result = list(gradients)
    places = [place for place, gradient in enumerate(result) if gradient is not None]
    wire = _WIRE[compression]
    travelling = []
    for place in places:
        gradient = result[place]
        narrowed = wire and keras.backend.standardize_dtype(gradient.dtype) in (
            "float32",
            "float64",
        )
        travelling.append(keras.ops.cast(gradient, wire) if narrowed else gradient)
    for place, reduced in zip(places, adapter.grouped_allreduce(travelling, op), strict=True):
        result[place] = keras.ops.cast(reduced, result[place].dtype)
    return result


def _innermost(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """The one that applies gradients, and adds them up: that in a LossScaleOptimizer."""
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
    """A subclass that reduces gradients. It has the name of its base, by which Keras saves it."""
    scales = issubclass(base, _SCALING)  # the inner optimizer adds up what it is given

    class Distributed(base):  # type: ignore[misc, valid-type]
        def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
            # Ahead of everything else, so that all ranks see the same infinities (loss scaling),
            # norms (clipping) and weights.
            if scales or not self.gradient_accumulation_steps:
                grads = reduce_gradients(grads, **getattr(self, _SETTINGS))
            super().apply(grads, trainable_variables)

        def stateless_apply(self, optimizer_variables: Any, grads: Any, variables: Any) -> Any:
            # Loss scaling does on JAX without `apply`.
            if base.stateless_apply is not keras.optimizers.Optimizer.stateless_apply:
                grads = reduce_gradients(grads, **getattr(self, _SETTINGS))
            return super().stateless_apply(optimizer_variables, grads, variables)

        def _clip_gradients(self, grads: Sequence[Any]) -> Any:
            # The first that happens to gradients that were accumulated.
            if self.gradient_accumulation_steps:
                grads = reduce_gradients(grads, **getattr(self, _SETTINGS))
            return super()._clip_gradients(grads)

    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        setattr(Distributed, name, getattr(base, name))
    return Distributed
