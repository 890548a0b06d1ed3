# SPDX-License-Identifier: Apache-2.0
"""Gradients that are sent between hosts in a wire format of fewer bytes, with error feedback."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import keras

from ddl_keras._adapter import adapter
from ddl_keras.copies import saved_as_base

WIRES = ("int8", "int4")

# Reduces a flat tensor of float32. Takes it and its residual, and returns the new values of both.
Reduce = Callable[[Any, Any], tuple[Any, Any]]

_hides: ContextVar[bool] = ContextVar("_hides", default=False)


def reducer(op: str, wire: str, **options: Any) -> Reduce:
    """Return the operation of the backend's adapter. options: those of `among`."""
    packing = importlib.import_module(f"{adapter.__name__}.packing")
    return lambda flat, residual: packing.allreduce_flat(flat, residual, op, wire, **options)


class _Residuals(keras.layers.Layer):
    """The rounding errors of one rank, as a part of an optimizer.

    It is a layer because Keras saves and loads the layers among an object's attributes. A file
    that contains them loads without libddl, too: the original optimizer has no such attribute.
    """

    def __init__(self, values: list[Any], rank: int, size: int) -> None:
        super().__init__(name="ddl_residuals")
        self.values, self._ranks = values, [rank, size]

    def save_own_variables(self, store: Any) -> None:
        for number, variable in enumerate(self.values):
            store[str(number)] = keras.ops.convert_to_numpy(variable.value)
        store["ranks"] = keras.ops.convert_to_numpy(self._ranks)

    def load_own_variables(self, store: Any) -> None:
        ranks = list(map(int, store["ranks"])) if "ranks" in store.keys() else None  # noqa: SIM118
        if ranks not in (None, self._ranks):
            warnings.warn(
                f"the rounding errors were saved by rank {ranks[0]} of {ranks[1]}, and this is rank"
                f" {self._ranks[0]} of {self._ranks[1]}: they begin with zeros, as in a new run."
                " Save and load a file for each rank",
                RuntimeWarning,
                stacklevel=2,
            )
        for number, variable in enumerate(self.values):
            known = ranks == self._ranks
            variable.assign(store[str(number)] if known else keras.ops.zeros(variable.shape))


def shared_variables(optimizer: Any) -> list[Any]:
    """Return the variables of an optimizer that are equal on all ranks."""
    with _without_residuals():
        return list(optimizer.variables)


@contextmanager
def _without_residuals() -> Iterator[None]:
    token = _hides.set(True)
    try:
        yield
    finally:
        _hides.reset(token)


def with_residuals(base: Any, rank: int, size: int) -> type:
    """Return a subclass of an optimizer that keeps the rounding errors of its gradients. Its own
    `variables` contain them, and files of a model contain them in addition to its variables."""

    class Packing(base):
        _ddl_ranks = rank, size
        _ddl_residuals: Any = None

        def build(self, variables: Sequence[Any]) -> None:
            super().build(variables)
            add_residuals(self)

        @property
        def variables(self) -> list[Any]:
            every = list(super().variables)
            if not _hides.get() or self._ddl_residuals is None:
                return every
            hidden = set(map(id, self._ddl_residuals.values))
            return [each for each in every if id(each) not in hidden]

        def save_own_variables(self, store: Any) -> None:
            with _without_residuals():
                super().save_own_variables(store)

        def load_own_variables(self, store: Any) -> None:
            with _without_residuals():
                super().load_own_variables(store)

    return saved_as_base(Packing)


def add_residuals(optimizer: Any) -> None:
    """Create the residuals of a built optimizer, initially zeros, unless it has them already."""
    if optimizer._ddl_residuals is not None:
        return
    packed = [each for each in optimizer._trainable_variables if _is_packed(each)]
    values = [optimizer.add_variable_from_reference(each, "ddl_residual") for each in packed]
    optimizer._ddl_residuals = _Residuals(values, *optimizer._ddl_ranks)
    optimizer._ddl_residual_of = dict(zip(map(optimizer._var_key, packed), values, strict=True))


def _is_packed(variable: Any) -> bool:
    dtype = keras.backend.standardize_dtype(variable.dtype)
    return dtype == "float32" and not getattr(variable, "overwrite_with_gradient", False)


def _is_dense_f32(gradient: Any) -> bool:
    if gradient is None or hasattr(gradient, "dense_shape"):
        return False
    return bool(keras.backend.standardize_dtype(gradient.dtype) == "float32")


def reduce_packed(
    optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any], reduce: Reduce
) -> dict[int, Any]:
    """Reduce the gradients of float32, and store what rounding loses. Return the results by their
    positions in `gradients`. Missing and sparse gradients have no result."""
    pairs: dict[int, tuple[Any, Any]] = {}
    residuals = getattr(optimizer, "_ddl_residual_of", {})
    for number, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
        residual = residuals.get(optimizer._var_key(variable))
        if residual is not None and _is_dense_f32(gradient):
            pairs[number] = gradient, residual
    if not pairs:
        return {}
    flat, lost = (
        keras.ops.concatenate([keras.ops.reshape(each, [-1]) for each in part])
        for part in zip(*pairs.values(), strict=True)
    )
    flat, lost = reduce(flat, lost)
    shapes = [residual.shape for _, residual in pairs.values()]
    results = {}
    ends = accumulate(map(prod, shapes), initial=0)
    for (number, (_, residual)), (start, end) in zip(pairs.items(), pairwise(ends), strict=True):
        residual.assign(keras.ops.reshape(lost[start:end], residual.shape))
        results[number] = keras.ops.reshape(flat[start:end], residual.shape)
    return results
