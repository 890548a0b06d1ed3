# SPDX-License-Identifier: Apache-2.0
"""Elastic training with JAX: ddl_elastic's half that knows jax.

    import ddl_jax.elastic as elastic

    def grad_fn(state, batch, key):            # of one share; pure, it is compiled
        return jax.value_and_grad(loss)(state["parameters"], batch, key)

    def update_fn(state, gradients):           # those of the whole batch
        ...
        return new_state

    state = elastic.train(make_state, grad_fn, update_fn, data, batch=256, logical=16, passes=10)

docs/elastic/ tells what is promised, and what a program must not do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ddl_elastic
from ddl_core import Comm
from ddl_elastic.frameworks import flat
from ddl_elastic.frameworks.protocol import Framework, State
from ddl_elastic.shares.loading import read_example
from ddl_elastic.storage.saving import policy_find
from ddl_elastic.worker import joining, trainer
from ddl_elastic.worker.loop import WATCHDOG, Loop
from ddl_jax.elastic import state as elastic_state
from ddl_jax.elastic.half import Half
from ddl_jax.elastic.pins import pin, refuse_fork, seed

__all__ = ["Half", "Job", "pin", "preload", "seed", "train"]


def train(
    state: Any,
    grad_fn: Callable[..., Any],
    update_fn: Callable[..., Any],
    data: Any,
    *,
    batch: int,
    logical: int,
    passes: int | None = None,
    steps: int | None = None,
    seed: int = 0,
    threads: int = 1,
    workers: int | str = "1:4096",
    comm: Comm | None = None,
    collate: Callable[..., Any] | None = None,
    watchdog: float = WATCHDOG,
    checkpoint: str | None = None,
    every: int = 100,
    keep: int = 3,
    progress: bool = True,
) -> Any:
    """Train; returns the final state, a tree like `state`.

    state      a tree of arrays, or a function that makes it
    grad_fn    (state, batch, key) -> (loss, gradients) of one share, as jax.value_and_grad gives
               them; or ((loss, extra), gradients), where extra is a tree of arrays such as the
               statistics of batch norm. `key` is made of the seed, the step and the logical worker
    update_fn  (state, gradients) -> state, or (state, gradients, extra) -> state: both averaged
               over all shares

    Both functions are pure, and are compiled by jax.jit.

    data, batch, logical, passes, steps, seed, threads, collate, watchdog, checkpoint, every, keep,
    progress: as of ddl_elastic.Job

    In a worker of `ddl elastic run`, or with `comm`, this process trains together with the others.
    Else it starts workers of its own, so many as `workers` says, forked from this process. JAX must
    not have computed anything here before: give `state` as a function, or of NumPy arrays.
    """
    constants: dict[str, Any] = {"batch": batch, "logical": logical, "seed": seed}
    reading: dict[str, Any] = {"passes": passes, "steps": steps, "collate": collate}
    saving: dict[str, Any] = {"checkpoint": checkpoint, "every": every, "keep": keep}
    options: dict[str, Any] = {**constants, "watchdog": watchdog}
    if not comm and not joining.is_worker():
        more = {"threads": threads, "workers": workers, "progress": progress}
        return Job(state, grad_fn, update_fn, data, **options, **reading, **saving, **more).train()
    pin(threads)
    half = _make_half(state, grad_fn, update_fn, data, collate, **constants)
    options["policy"] = policy_find(checkpoint, every, keep)
    trainer.train(
        Loop(half, **({"comm": comm} if comm else joining.join()), **options),
        {"data": data, **reading},
    )
    return half.model


class Job(ddl_elastic.Job):
    """What `train` makes where it starts the workers; `report` tells how it goes. See
    ddl_elastic.Job."""

    def __init__(
        self,
        state: Any,
        grad_fn: Callable[..., Any],
        update_fn: Callable[..., Any],
        data: Any,
        **options: Any,
    ) -> None:
        super().__init__(
            model=lambda: state, loss=grad_fn, optimizer=update_fn, data=data, **options
        )
        self._state, self._functions, self._data = state, (grad_fn, update_fn), data

    def train(self, on_progress: Callable[[dict[str, Any]], None] | None = None) -> Any:
        refuse_fork()
        return super().train(on_progress)

    def _make_framework(self) -> Framework:
        constants, collate = self._constants, self._reading["collate"]
        numbers = {"batch": constants.batch, "logical": constants.logical, "seed": constants.seed}
        return _make_half(self._state, *self._functions, self._data, collate, **numbers)

    def _restore(self, state: State) -> Any:
        """Of NumPy arrays: JAX need not start in this process."""
        return elastic_state.load(state, elastic_state.shapes(self._state))


def _make_half(
    state: Any,
    grad_fn: Callable[..., Any],
    update_fn: Callable[..., Any],
    data: Any,
    collate: Callable[..., Any] | None,
    *,
    batch: int,
    logical: int,
    seed: int,
) -> Half:
    """With one share as an example, which shows the shapes of the gradients."""
    example = read_example(data, batch, logical, seed, flat.seed, collate or flat.stack)
    made = state() if callable(state) else state
    return Half(made, grad_fn, update_fn, example)


# ---- of ddl_elastic.frameworks.protocol.AdapterModule ----


def preload() -> None:
    """All that training needs is there when jax is imported."""
