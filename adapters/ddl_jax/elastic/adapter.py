# SPDX-License-Identifier: Apache-2.0
"""The JAX adapter of ddl_elastic: two compiled functions compute shares and update the state."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ddl_elastic.frameworks import flat, protocol
from ddl_elastic.frameworks.flat import Flat, Spec
from ddl_jax.arrays import as_array
from ddl_jax.elastic import pins
from ddl_jax.elastic import state as elastic_state
from ddl_jax.elastic.rounds import Average, Outer, StateChanges


class JaxAdapter(Flat):
    """The JAX adapter; implements ddl_elastic.frameworks.protocol.Framework for `train`.

    example  a batch with the shapes that every share has
    """

    seed = staticmethod(flat.seed)

    def __init__(
        self,
        state: Any,
        grad_fn: Callable[..., Any],
        update_fn: Callable[..., Any],
        example: Any,
    ) -> None:
        self.model = jax.tree.map(as_array, state)
        self._words = np.zeros(2, np.uint32)  # from which a share's key is made
        self._rounds: StateChanges | None = None
        self._is_local = False
        self._local: Any = None  # the state after the last local step of a share
        self._losses: list[float] = []

        def compute(state: Any, batch: Any, words: Any) -> Any:
            value, gradients = grad_fn(state, batch, _make_key(words))
            loss, extra = value if isinstance(value, tuple) else (value, ())
            return (gradients, extra), loss

        shapes, _ = jax.eval_shape(compute, self.model, example, self._words)
        leaves, form = jax.tree.flatten(shapes)
        named = jax.tree_util.tree_flatten_with_path(shapes)[0]
        names = [jax.tree_util.keystr(path[1:]) for path, _ in named]  # without gradients or extra
        has_extra = bool(jax.tree.leaves(shapes[1]))

        def update(state: Any, leaves: Any) -> Any:
            gradients, extra = jax.tree.unflatten(form, leaves)
            return update_fn(state, gradients, extra) if has_extra else update_fn(state, gradients)

        self.walked = [grad_fn, update_fn]  # functions that may have hidden state
        self._compute, self._update = jax.jit(compute), jax.jit(update)
        pairs = zip(names, leaves, strict=True)
        self._step_specs = [Spec(each.shape, each.dtype, name=name) for name, each in pairs]
        self.lay_out(self._step_specs)
        pins.tell_device()

    def environment(self) -> dict[str, str]:
        return pins.describe()

    # ---- a share ----

    def begin(self, worker: int) -> None:
        """Draw the words of the share's key from Python's generator, which the caller has seeded
        for this step and worker."""
        self._worker = worker
        self._draw_words()

    def _draw_words(self) -> None:
        self._words = np.array([random.getrandbits(32) for _ in range(2)], np.uint32)

    def run(self, batch: Any, ready: protocol.Ready | None = None) -> protocol.Share:
        tensors, loss = self._compute(self.model, batch, self._words)
        return self.take(map(np.asarray, jax.tree.leaves(tensors)), loss)

    def backward(
        self, loss: Any, ready: protocol.Ready | None = None, weight: Any = 1.0
    ) -> protocol.Share:
        raise NotImplementedError(
            "JAX jobs have no step.backward: grad_fn computes the gradients of a share"
        )

    # ---- a run of local steps ----

    def set_outer(
        self, outer: Outer | None, moments: str = "averaged", wire: str | None = None
    ) -> None:
        if wire not in (None, "f32"):
            raise ValueError(f"wire is {wire!r}; JAX jobs average the state in float32")
        if moments != "averaged":
            raise ValueError(f'moments is "{moments}"; JAX jobs average the whole state')
        self._rounds = StateChanges(outer or Average(), self.model)

    def set_local(self, is_local: bool) -> None:
        if is_local != self._is_local:
            assert self._rounds
            self._is_local = is_local
            self.lay_out(self._rounds.specs() if is_local else self._step_specs)

    def begin_local(self) -> None:
        self._local, self._losses = self.model, []

    def backward_local(self, loss: Any, weight: Any = 1.0) -> None:
        self.backward(loss)

    def run_local(self, batch: Any) -> None:
        self._draw_words()
        tensors, loss = self._compute(self._local, batch, self._words)
        self._local = self._update(self._local, jax.tree.leaves(tensors))
        elastic_state.check(self._local, self.model)
        self._losses.append(float(loss))

    def end_local(self) -> protocol.Share:
        assert self._rounds
        changes = self._rounds.changes(self.model, self._local, self._worker)
        return self.take(changes, sum(self._losses) / len(self._losses))

    def step_outer(self) -> None:
        assert self._rounds
        self.model = self._rounds.step(self.model, self._tensors)

    # ---- the result ----

    def apply(self) -> None:
        self._tensors = self.results()

    def update(self) -> None:
        updated = jax.block_until_ready(self._update(self.model, self._tensors))
        elastic_state.check(updated, self.model)
        self.model = updated

    def held(self) -> list[Any]:
        """Return the parts of the job's state; see ddl_elastic/hidden/."""
        own = self._rounds.own if self._rounds else ()
        return [self.model, *jax.tree.leaves(self.model), own, *jax.tree.leaves(own)]

    # ---- the state ----

    def state(self) -> protocol.State:
        own = self._rounds.own if self._rounds else ()
        return self.add_loss(elastic_state.save(self.model, own))

    def load(self, state: protocol.State) -> None:
        own = self._rounds.own if self._rounds else ()
        trees = elastic_state.load(state, self.model, own)
        self.load_loss(state)
        self.model, own = jax.tree.map(jax.numpy.array, trees)
        if self._rounds:
            self._rounds.own = own


def _make_key(words: Any) -> Any:
    key = jax.random.key(0)
    return jax.random.fold_in(jax.random.fold_in(key, words[0]), words[1])
