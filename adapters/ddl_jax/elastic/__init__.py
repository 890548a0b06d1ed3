# SPDX-License-Identifier: Apache-2.0
"""Elastic training with JAX: ddl_elastic's adapter for jax.

    import ddl_jax.elastic as elastic

    def grad_fn(state, batch, key):            # for one share; a pure function, compiled by JAX
        return jax.value_and_grad(loss)(state["parameters"], batch, key)

    def update_fn(state, gradients):           # with the gradients of the whole batch
        ...
        return new_state

    state = elastic.train(make_state, grad_fn, update_fn, data, batch=256, logical=16, passes=10)

or, on a slow network, in rounds of local steps: train(..., local_steps=50, outer=Nesterov()).

docs/elastic/ explains the guarantees, and what a program must not do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ddl_elastic
from ddl_core import Comm
from ddl_elastic.frameworks import flat
from ddl_elastic.frameworks.protocol import Framework, LocalFramework, State
from ddl_elastic.shares.loading import read_example
from ddl_elastic.storage.saving import policy_find
from ddl_elastic.worker import joining, trainer
from ddl_elastic.worker.loop import WATCHDOG
from ddl_jax.elastic import state as elastic_state
from ddl_jax.elastic.adapter import JaxAdapter
from ddl_jax.elastic.pins import pin, refuse_fork, seed
from ddl_jax.elastic.rounds import Average, Nesterov, Outer

__all__ = ["Adapter", "Average", "Job", "Nesterov", "Outer", "pin", "preload", "seed", "train"]

Adapter = JaxAdapter  # the name by which ddl_elastic finds it


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
    local_steps: int | None = None,
    outer: Outer | None = None,
    seed: int = 0,
    threads: int = 1,
    workers: int | str = "1:4096",
    comm: Comm | None = None,
    collate: Callable[..., Any] | None = None,
    watchdog: float = WATCHDOG,
    checkpoint: str | None = None,
    every: int = 100,
    keep: int = 3,
    strict: bool = False,
    progress: bool = True,
) -> Any:
    """Train, and return the final state, a tree like `state`.

    state      a tree of arrays, or a function that returns it
    grad_fn    (state, batch, key) -> (loss, gradients) of one share, in the form that
               jax.value_and_grad returns; or -> ((loss, extra), gradients), where extra is a tree
               of arrays such as batch norm's statistics. `key` depends on the seed, the step and
               the logical worker
    update_fn  (state, gradients) -> state, or (state, gradients, extra) -> state; gradients and
               extra are averaged over all shares

    Both functions must be pure. jax.jit compiles them.

    local_steps  the number of local steps of each logical worker in a round, to train in rounds;
               `steps` and `every` then count rounds. None: no rounds
    outer      the optimizer that applies the average of the local steps. None: Average()

    data, batch, logical, passes, steps, seed, threads, collate, watchdog, checkpoint, every, keep,
    strict, progress: see ddl_elastic.Job

    In a worker of `ddl elastic run`, or with `comm`, this process trains together with the job's
    other processes. Otherwise, it forks `workers` workers. In that case, JAX must not have computed
    anything in this process before: pass `state` as a function, or with NumPy arrays.
    """
    constants: dict[str, Any] = {"batch": batch, "logical": logical, "seed": seed}
    reading: dict[str, Any] = {"passes": passes, "steps": steps, "collate": collate}
    if local_steps is not None:
        reading["local_steps"] = local_steps
    saving: dict[str, Any] = {"checkpoint": checkpoint, "every": every, "keep": keep}
    options: dict[str, Any] = {**constants, "watchdog": watchdog, "strict": strict}
    if not comm and not joining.is_worker():
        more = {"threads": threads, "workers": workers, "outer": outer, "progress": progress}
        return Job(state, grad_fn, update_fn, data, **options, **reading, **saving, **more).train()
    pin(threads)
    adapter = _make_adapter(state, grad_fn, update_fn, data, collate, **constants)
    options["policy"] = policy_find(checkpoint, every, keep)
    options |= {"comm": comm} if comm else joining.join()
    reading |= {"data": data, "loader_workers": 0}
    if local_steps is not None:
        adapter.set_outer(outer)
    trainer.train(trainer.make_loop(adapter, reading, **options), reading)
    return adapter.model


class Job(ddl_elastic.Job):
    """The job that `train` creates if it starts the workers. `report` describes its progress. See
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
        return _make_adapter(
            self._state,
            *self._functions,
            data=self._data,
            collate=collate,
            batch=constants.batch,
            logical=constants.logical,
            seed=constants.seed,
        )

    def _make_outer(self, framework: LocalFramework) -> Any:
        return self._outer

    def _restore(self, state: State) -> Any:
        """Return the state with NumPy arrays, so that JAX does not start in this process."""
        own = {name: each for name, each in state.items() if elastic_state.is_own(name)}
        return elastic_state.load(own, elastic_state.shapes(self._state))[0]


def _make_adapter(
    state: Any,
    grad_fn: Callable[..., Any],
    update_fn: Callable[..., Any],
    data: Any,
    collate: Callable[..., Any] | None,
    *,
    batch: int,
    logical: int,
    seed: int,
) -> JaxAdapter:
    """Create the adapter. It reads one share as an example, to determine the gradients' shapes."""
    example = read_example(data, batch, logical, seed, flat.seed, collate or flat.stack)
    made = state() if callable(state) else state
    return JaxAdapter(made, grad_fn, update_fn, example)


# ---- from ddl_elastic.frameworks.protocol.AdapterModule ----


def preload() -> None:
    """Do nothing: importing jax loads all that training needs."""
