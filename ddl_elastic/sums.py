"""Ordered sums: their bits depend neither on the number of ranks nor on which computed what.

A stand-in in Python until libddl has them: every rank gathers all parts and adds them up in the
tree's order. The bits are final, the speed is not. libddl's will have this shape:

    order = comm.order(owners)
    comm.allreduce_ordered(order, parts, recv, op="average")
    ddl_core.add(dst, left, right)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ddl_core import Comm
from ddl_elastic.order import children, parts_of

Array = npt.NDArray[Any]  # contiguous, of one dimension


@dataclass(frozen=True)
class Order:
    """Which rank brings which workers' operands. `parts[rank]` are the nodes that it brings."""

    workers: int
    parts: tuple[tuple[tuple[int, int], ...], ...]


def order(comm: Comm, owners: Sequence[int]) -> Order:
    """The order for an operand of each worker v that owners[v] brings. Equal on all ranks."""
    owned: list[list[int]] = [[] for _ in range(comm.size)]
    for worker, rank in enumerate(owners):
        owned[rank].append(worker)
    return Order(len(owners), tuple(tuple(parts_of(each, len(owners))) for each in owned))


def add(dst: Array, left: Array, right: Array) -> None:
    """dst = left + right, as ordered sums add; dst may be either."""
    np.add(left, right, out=dst)


def allreduce_ordered(
    comm: Comm, order: Order, parts: Sequence[Array], recv: Array, op: str = "sum"
) -> None:
    """recv = the tree's sum over all ranks' parts; op "average" divides it by the workers.

    parts[k] is the value of the k-th of order.parts[comm.rank]. They are only read: after a failure
    they can be brought again.
    """
    nodes = [node for brought in order.parts for node in brought]
    send = np.concatenate(parts) if len(parts) else np.empty(0, recv.dtype)
    everyones = np.empty((len(nodes), recv.size), recv.dtype)
    counts = [len(brought) * recv.size for brought in order.parts]
    comm.allgatherv(send, everyones.reshape(-1), counts=counts)
    values = dict(zip(nodes, everyones, strict=True))

    def value(node: tuple[int, int]) -> Array:
        if node not in values:
            left, right = children(node)
            values[node] = value(left) + value(right)
        return values[node]

    total = value((0, order.workers))
    if op == "average" and recv.dtype.kind in "iu":
        recv[:] = np.trunc(total / order.workers)
    elif op == "average":
        np.divide(total, recv.dtype.type(order.workers), out=recv)
    else:
        recv[:] = total
