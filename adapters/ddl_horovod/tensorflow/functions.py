# SPDX-License-Identifier: Apache-2.0
"""Broadcasts of objects and variables, and operations that return ranks as tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ddl_core.adapter_objects import check, packed, unpacked
from ddl_horovod.executor import MemberCall
from ddl_horovod.tensorflow.operations import Operation, broadcast_, submit
from ddl_horovod.tensorflow.world import WORLD, global_process_set
from ddl_horovod.world import ProcessSet

__all__ = [
    "BroadcastGlobalVariablesHook",
    "allgather_object",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "refs_to_vars",
    "size_op",
    "vars_to_refs",
]


def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> Any:
    """Assign the root's values to the variables of all members. In a graph of TensorFlow 1, return
    the operation that does this. inplace is ignored. String variables are not changed."""
    movable = [each for each in variables if tf.as_dtype(each.dtype) != tf.string]
    assigned = broadcast_(movable, root_rank, None, process_set)
    return tf.group(*assigned) if not tf.executing_eagerly() else None


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Return the root's object on all members. Objects are pickled, so the ranks must trust each
    other. Raises TypeError on all members if pickling fails. session is ignored."""
    members = process_set.members()
    own = members[process_set.rank()] == root_rank
    data = packed(obj, root_rank) if own else b""
    content = _gathered(data, name, process_set)
    if own:
        check(data)
        return obj
    return unpacked(content[members.index(root_rank)])


def broadcast_object_fn(
    root_rank: int = 0,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Return a function that calls `broadcast_object` with these arguments."""

    def move(obj: Any) -> Any:
        return broadcast_object(obj, root_rank, session, name, process_set)

    return move


def allgather_object(
    obj: Any,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Return the objects of all members. They are pickled as in `broadcast_object`."""
    data = packed(obj, process_set.members()[process_set.rank()])
    return [unpacked(each) for each in _gathered(data, name, process_set)]


def broadcast_global_variables(root_rank: int) -> Any:
    """Return the operation of a TensorFlow 1 graph that broadcasts the root's variables to all
    ranks. Raises RuntimeError in eager execution."""
    if tf.executing_eagerly():
        raise RuntimeError(
            "broadcast_global_variables: eager execution has no global variables; use"
            " hvd.broadcast_variables(model.variables, root_rank)"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """A hook that broadcasts the root's variables to all ranks when a TensorFlow 1 session begins.
    device is ignored."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self._operation: Any = None

    def begin(self) -> None:
        """Add the broadcast to the graph."""
        graph = tf.compat.v1.get_default_graph()
        if self._operation is None or self._operation.graph is not graph:
            self._operation = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Run the broadcast."""
        session.run(self._operation)


def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Return an operation that computes the number of a process set's members when it runs."""
    return _number(lambda: WORLD.process_set(process_set_id).size(), name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Return an operation whose value is 1 on the members of a process set, and 0 elsewhere."""
    return _number(lambda: int(WORLD.process_set(process_set_id).included()), name)


def local_size_op(name: str | None = None) -> tf.Tensor:
    """Return an operation that calls `local_size` when it runs."""
    return _number(WORLD.local_size, name)


def rank_op(name: str | None = None) -> tf.Tensor:
    """Return an operation that calls `rank` when it runs."""
    return _number(WORLD.rank, name)


def local_rank_op(name: str | None = None) -> tf.Tensor:
    """Return an operation that calls `local_rank` when it runs."""
    return _number(WORLD.local_rank, name)


def vars_to_refs(vars: Any) -> Any:
    """Return a variable's hashable reference; for a list, a tuple of references."""
    return tuple(map(vars_to_refs, vars)) if isinstance(vars, list) else vars.ref()


def refs_to_vars(refs: Any) -> Any:
    """Return the variables of references that `vars_to_refs` returned."""
    return [refs_to_vars(each) for each in refs] if isinstance(refs, tuple) else refs.deref()


def _number(read: Callable[[], int], name: str | None) -> tf.Tensor:
    if tf.executing_eagerly():
        return tf.constant(read(), tf.int32)
    number = tf.numpy_function(lambda: np.int32(read()), [], tf.int32, name=name)
    number.set_shape([])
    return number


def _gathered(text: bytes, name: str | None, process_set: ProcessSet) -> Sequence[bytes]:
    own = np.frombuffer(text, np.uint8)
    call, gather = Operation("allgather", (), process_set).prepare([own])

    def perform(comm: Any, calls: list[MemberCall]) -> list[bytes]:
        ends = np.cumsum([each.shapes[0][0] if each.shapes else 0 for each in calls])
        parts = np.split(gather(comm, calls)[0], ends[:-1])
        return [each.tobytes() for each in parts]

    parts: list[bytes] = submit(process_set, name, call, perform).result()
    return parts
