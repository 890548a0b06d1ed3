# SPDX-License-Identifier: Apache-2.0
"""Rounds of local steps with JAX. Each share starts from the committed state, and its tensors are
the changes that its local steps make to the state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np

from ddl_elastic.frameworks.flat import WIDE, Spec, Values
from ddl_jax.elastic import state as elastic_state


class Outer(Protocol):
    """An outer optimizer. It applies the average of all shares' local steps. Both functions must be
    pure; jax.jit compiles `step`."""

    def init(self, state: Any) -> Any:
        """Return the optimizer's own state, a tree of arrays, for the job's initial state."""

    def step(self, before: Any, after: Any, own: Any) -> tuple[Any, Any]:
        """Return the job's next state and the optimizer's next state.

        before  the job's state at the start of the round
        after   the average of the shares' states after their local steps
        own     the optimizer's state
        """


class Average:
    """The outer optimizer that continues with the average of the shares' states."""

    def init(self, state: Any) -> Any:
        return ()

    def step(self, before: Any, after: Any, own: Any) -> tuple[Any, Any]:
        return after, own


@dataclass(frozen=True)
class Nesterov:
    """DiLoCo's outer optimizer (Douillard et al., arXiv 2311.08105): gradient descent with Nesterov
    momentum for the parameters. Its gradients are the parameters before the round, minus their
    average after the local steps. The rest of the state, such as moments, is averaged.

    parameters  the key of the parameters in the job's state, which must be a dictionary
    """

    parameters: str = "parameters"
    learning_rate: float = 0.7
    momentum: float = 0.9

    def init(self, state: Any) -> Any:
        if not isinstance(state, Mapping) or self.parameters not in state:
            raise ValueError(f"the state is no dictionary with the key {self.parameters!r}")
        return jax.tree.map(jax.numpy.zeros_like, state[self.parameters])

    def step(self, before: Any, after: Any, own: Any) -> tuple[Any, Any]:
        old, new = before[self.parameters], after[self.parameters]
        gradients = jax.tree.map(lambda a, b: a - b, old, new)
        velocity = jax.tree.map(lambda v, g: self.momentum * v + g, own, gradients)
        parameters = jax.tree.map(
            lambda a, g, v: (a - self.learning_rate * (g + self.momentum * v)).astype(a.dtype),
            *(old, gradients, velocity),
        )
        return {**after, self.parameters: parameters}, velocity


class StateChanges:
    """The outer optimizer of a job, and the form of its shares.

    A share has a tensor for each leaf of the state. For a leaf of floating-point numbers, it is the
    leaf before the local steps minus the leaf after them; these tensors are averaged. For another
    leaf, it is logical worker 0's leaf after the local steps.
    """

    def __init__(self, outer: Outer, state: Any) -> None:
        self.outer = outer
        self.own = jax.tree.map(jax.numpy.asarray, outer.init(state))
        self._step = jax.jit(outer.step)
        self._names = elastic_state.names(state)
        self._plain = [elastic_state.plain(leaf) for leaf in jax.tree.leaves(state)]
        self._floats = [jax.numpy.issubdtype(each.dtype, np.floating) for each in self._plain]

    def specs(self) -> list[Spec]:
        """Return the specifications of the tensors in each share."""
        found = []
        for name, leaf, is_float in zip(self._names, self._plain, self._floats, strict=True):
            is_other = leaf.dtype == bool or np.issubdtype(leaf.dtype, np.integer)
            kind: Any = np.int64 if is_other else WIDE.get(leaf.dtype.name, leaf.dtype)
            found.append(Spec(leaf.shape, kind, "average" if is_float else "sum", name))
        return found

    def changes(self, before: Any, after: Any, worker: int) -> Iterator[Values]:
        """Yield the tensors of the share of this logical worker."""
        pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
        for is_float, (old, new) in zip(self._floats, pairs, strict=True):
            first, last = elastic_state.plain(old), elastic_state.plain(new)
            if is_float:
                kind = WIDE[first.dtype.name]
                yield first.astype(kind) - last.astype(kind)
            else:
                yield last.astype(np.int64) if worker == 0 else np.zeros(last.shape, np.int64)

    def step(self, before: Any, changes: Sequence[Values]) -> Any:
        """Step the outer optimizer. Return the job's next state."""
        found = []
        leaves = zip(jax.tree.leaves(before), self._floats, changes, strict=True)
        for leaf, is_float, change in leaves:
            old = elastic_state.plain(leaf)
            new = old.astype(change.dtype) - change if is_float else change
            found.append(elastic_state.like(leaf, new.astype(old.dtype)))
        after = jax.tree.unflatten(jax.tree.structure(before), found)
        state, self.own = jax.block_until_ready(self._step(before, after, self.own))
        return state
