# SPDX-License-Identifier: Apache-2.0
"""libddl for Caffe, through its Python interface (pycaffe).

    import caffe
    import ddl_caffe as ddl

    ddl.init()
    solver = ddl.Solver(caffe.get_solver("solver.prototxt"))
    solver.step(1000)
    solver.snapshot()                # on rank 0

The solver averages the gradients of all ranks between the backward pass and the update. Each rank
feeds its own part of every batch. The operations accept NumPy arrays; pycaffe's blobs are views of
such arrays (`blob.data`, `blob.diff`).

This package does not import Caffe. It accepts every object with pycaffe's interface, as documented
and as in python/caffe/pycaffe.py (`net.params`, `net.layers`, `forward`, `backward`,
`add_callback`, `apply_update`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ddl_core import adapter_arrays, array_functions
from ddl_core.errors import InvalidArgument
from ddl_core.handles.work import Work

if TYPE_CHECKING:
    from ddl_core.array_functions import *  # noqa: F403

__all__ = ["Solver", "allreduce_gradients", "attach"]
__all__ += array_functions.__all__

Array = np.ndarray[Any, Any]

_world = adapter_arrays.ArrayWorld("ddl_caffe")
array_functions.export(globals(), _world)
allreduce_gradients = _world.allreduce_gradients


def attach(solver: Any) -> None:
    """Copy rank 0's weights to all ranks, and make the solver's own `step` and `solve` average the
    gradients in its callbacks.

    All ranks call it, with solvers of equal nets. Raises InvalidArgument for a solver without
    `add_callback`; use `Solver` for such solvers, which has its own loop. If a callback raises an
    error, such as CommDead if a rank dies, the solver's `step` raises it.
    """
    if not hasattr(solver, "add_callback"):
        raise InvalidArgument(
            f"solver is a {type(solver).__name__}, which has no add_callback; use ddl_caffe.Solver"
        )
    _broadcast_weights(solver.net)
    solver.add_callback(lambda: None, lambda: _average(solver.net))


class Solver:
    """A solver that trains on all ranks. Other attributes (`net`, `test_nets`, `iter`, ...) are
    passed to the wrapped solver.

    If Caffe's build has solver callbacks, a callback averages the gradients in one group of
    operations. Otherwise, `step` is a loop of forward, backward and `apply_update`, in which a
    layer's gradients are sent while the layers before it compute theirs.

    solver     a solver of pycaffe, such as caffe.SGDSolver("solver.prototxt"). Its file must have
               no `snapshot` interval, since Caffe would write on all ranks.
    iter_size  backward passes per update, as in the solver's file; used by the loop only
    """

    def __init__(self, solver: Any, iter_size: int = 1) -> None:
        self._solver = solver
        self._iter_size = iter_size
        self._own_loop = not hasattr(solver, "add_callback")
        if self._own_loop:
            if not hasattr(solver, "apply_update"):
                raise InvalidArgument(
                    f"solver is a {type(solver).__name__}, which has neither add_callback nor"
                    " apply_update"
                )
            _broadcast_weights(solver.net)
        else:
            attach(solver)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._solver, name)

    def step(self, iterations: int) -> None:
        """Do this number of updates. All ranks pass the same number."""
        if not self._own_loop:
            self._solver.step(iterations)
            return
        for _ in range(iterations):
            net = self._solver.net
            net.clear_param_diffs()
            for _ in range(self._iter_size - 1):
                net.forward()
                net.backward()
            net.forward()
            _backward_and_average(net)
            self._solver.apply_update()

    def solve(self) -> None:
        """Raise InvalidArgument, since Caffe would write snapshots on all ranks. Call `step`
        instead."""
        raise InvalidArgument(
            "solve is not supported for a distributed solver; call step(iterations)"
        )

    def snapshot(self) -> None:
        """Write the solver's snapshot on rank 0. All ranks return after it is written."""
        if _world.rank() == 0:
            self._solver.snapshot()
        _world.barrier()


def _gradients(net: Any) -> dict[str, list[Array]]:
    """Return each layer's gradients, from the last layer on. Gradients that layers share belong to
    the first of these layers, whose backward pass is the last to add to them."""
    seen: set[int] = set()
    layers: dict[str, list[Array]] = {}
    for name, blobs in net.params.items():
        own = [blob.diff for blob in blobs]
        layers[name] = [diff for diff in own if diff.ctypes.data not in seen]
        seen.update(diff.ctypes.data for diff in own)
    return dict(reversed(layers.items()))


def _average(net: Any) -> None:
    """Average all gradients in place."""
    diffs = [diff for layer in _gradients(net).values() for diff in layer]
    if diffs:
        with _world.comm().group() as group:
            for diff in diffs:
                group.allreduce(diff, op="average")


def _backward_and_average(net: Any) -> None:
    """Do the backward pass layer by layer. Send a layer's gradients as soon as they are
    complete."""
    comm, gradients, names = _world.comm(), _gradients(net), list(net.layer_dict)
    started: list[Work[Array]] = []
    above = len(names) - 1  # the layer at which the pass continues
    for index in reversed(range(len(names))):
        own = gradients.get(names[index], [])
        if own or index == 0:
            net.backward(start=names[above], end=names[index])
            started += [comm.allreduce_async(diff, op="average") for diff in own]
            above = index - 1
    for work in started:
        work.wait()


def _broadcast_weights(net: Any) -> None:
    blobs = [blob.data for layer in net.params.values() for blob in layer]
    _world.broadcast_parameters({str(index): data for index, data in enumerate(blobs)})
