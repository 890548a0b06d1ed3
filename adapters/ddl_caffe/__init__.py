# SPDX-License-Identifier: Apache-2.0
"""libddl for Caffe, by its Python interface (pycaffe).

    import caffe
    import ddl_caffe as ddl

    ddl.init()
    solver = ddl.Solver(caffe.get_solver("solver.prototxt"))
    solver.step(1000)
    solver.snapshot()                # on rank 0

The solver averages the gradients of all ranks between the backward pass and the update. Each rank
feeds its own part of every batch. The operations take NumPy arrays, which pycaffe's blobs are views
of (`blob.data`, `blob.diff`).

This package does not import Caffe: it takes whatever has pycaffe's interface, as its documentation
and python/caffe/pycaffe.py have it (`net.params`, `net.layers`, `forward`, `backward`,
`add_callback`, `apply_update`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ddl_core import adapter_arrays, array_functions
from ddl_core.errors import InvalidArgument
from ddl_core.work import Work

if TYPE_CHECKING:
    from ddl_core.array_functions import *  # noqa: F403

__all__ = ["Solver", "allreduce_gradients", "attach"]
__all__ += array_functions.__all__

Array = np.ndarray[Any, Any]

_world = adapter_arrays.ArrayWorld("ddl_caffe")
array_functions.export(globals(), _world)
allreduce_gradients = _world.allreduce_gradients


def attach(solver: Any) -> None:
    """Make a solver's own `step` and `solve` average the gradients, by its callbacks, after giving
    all ranks rank 0's weights.

    All ranks call it, with solvers of equal nets. Raises InvalidArgument for a solver without
    `add_callback`, for which `Solver` has a loop of its own. An error in a callback, such as
    CommDead when a rank dies, comes out of the solver's `step`.
    """
    if not hasattr(solver, "add_callback"):
        raise InvalidArgument(
            f"solver: {type(solver).__name__} has no add_callback; use ddl_caffe.Solver"
        )
    _broadcast_weights(solver.net)
    solver.add_callback(lambda: None, lambda: _average(solver.net))


class Solver:
    """A solver on all ranks. Other attributes (`net`, `test_nets`, `iter`, ...) are those of the
    solver that it wraps.

    Where Caffe's build has solver callbacks they average the gradients, by one group of operations.
    Otherwise `step` is a loop of forward, backward and `apply_update`, in which a layer's gradients
    travel while the layers before it compute theirs.

    solver     one of pycaffe's, such as caffe.SGDSolver("solver.prototxt"). Its file has no
               `snapshot` interval, since Caffe would write on all ranks.
    iter_size  backward passes per update, as in the solver's file; only the own loop needs it
    """

    def __init__(self, solver: Any, iter_size: int = 1) -> None:
        self._solver = solver
        self._iter_size = iter_size
        self._own_loop = not hasattr(solver, "add_callback")
        if self._own_loop:
            if not hasattr(solver, "apply_update"):
                raise InvalidArgument(
                    f"solver: {type(solver).__name__} has neither add_callback nor apply_update"
                )
            _broadcast_weights(solver.net)
        else:
            attach(solver)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._solver, name)

    def step(self, iterations: int) -> None:
        """As many updates. All ranks give the same number."""
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
        """Not here: it would write snapshots on all ranks. Call `step`."""
        raise InvalidArgument("solve: a solver of all ranks trains by step(iterations)")

    def snapshot(self) -> None:
        """Write the solver's snapshot, on rank 0; return on no rank before it is written."""
        if _world.rank() == 0:
            self._solver.snapshot()
        _world.barrier()


def _gradients(net: Any) -> dict[str, list[Array]]:
    """Each layer's gradients, from the last layer on. What several layers share counts for the
    first of them, whose backward pass is the last to add to it."""
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
    """The backward pass, layer by layer; a layer's gradients travel as soon as they are there."""
    comm, gradients, names = _world.comm(), _gradients(net), list(net.layer_dict)
    started: list[Work[Array]] = []
    above = len(names) - 1  # the layer from which the pass goes on
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
