# SPDX-License-Identifier: Apache-2.0
"""The partial sums of a rank's shares in one step, along the tree of the order."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from functools import lru_cache

import ddl_core
from ddl_elastic.frameworks.protocol import Array, Share
from ddl_elastic.shares.order import children, parent

Node = tuple[int, int]  # (first worker, number of workers)


@lru_cache(maxsize=1 << 13)
def _above(node: Node, workers: int) -> tuple[Node, Node, Node]:
    """Return a node's parent, and the parent's two children."""
    above = parent(node, workers)
    return above, *children(above)


def add_arrays(number: int, into: Share, left: Share, right: Share) -> None:
    """Set array `number` of `into`, which is left or right, to left + right."""
    ddl_core.add(into[number], left[number], right[number])


class PartialSums:
    """The partial sums of a contiguous range of workers, added in any order.

    The range has at most log2(workers) + 1 nodes. A share is a list of arrays; all shares of a step
    have the same lengths and dtypes. An added share's memory is used for sums until `free(share)`.

    add_to  see add_arrays; `into` is the share that was added first
    skip    the numbers of the arrays that are not added
    """

    def __init__(
        self,
        workers: int,
        free: Callable[[Share], None] = lambda _: None,
        add_to: Callable[[int, Share, Share, Share], None] = add_arrays,
        skip: Container[int] = (),
    ) -> None:
        self._workers, self._free, self._add_to, self._skip = workers, free, add_to, skip
        self._nodes: dict[Node, Share] = {}
        self.held: set[int] = set()  # the workers whose shares are added completely
        self._entering = -1  # the worker whose share is added in part, or -1
        self._pairs: list[tuple[Share, Share, Share]] = []  # (into, left, right) of each addition
        self._done = 0  # number of its arrays that are added

    def add(self, worker: int, share: Share, count: int | None = None) -> None:
        """Add the first `count` arrays of a worker's share; later calls add the rest."""
        if worker in self.held:
            raise RuntimeError(f"the share of logical worker {worker} was computed twice")
        if worker != self._entering:
            self._enter(worker, share)
        last = len(share) if count is None else count
        for number in range(self._done, last):
            if not self._pairs:
                share[number]  # computes the array if it is not there yet
            if number in self._skip:
                continue
            for into, left, right in self._pairs:
                self._add_to(number, into, left, right)
        self._done = last
        if last == len(share):
            self._entering = -1
            self.held.add(worker)
            for into, left, right in self._pairs:
                self._free(right if into is left else left)

    def _enter(self, worker: int, share: Share) -> None:
        self._entering, self._pairs, self._done = worker, [], 0
        node, value = (worker, 1), share
        while node != (0, self._workers):
            above, left, right = _above(node, self._workers)
            sibling = right if node == left else left
            if sibling not in self._nodes:
                break
            other = self._nodes.pop(sibling)
            pair = (value, other) if node == left else (other, value)
            self._pairs.append((other, *pair))
            node, value = above, other
        self._nodes[node] = value

    def arrays(self, nodes: Sequence[Node], number: int) -> list[Array]:
        """Return array `number` of the partial sums over `nodes`. Raises RuntimeError if the object
        holds other nodes."""
        if sorted(self._nodes) != list(nodes):
            raise RuntimeError(
                f"the partial sums are over {sorted(self._nodes)}; must be over {list(nodes)}"
            )
        return [self._nodes[node][number] for node in nodes]

    def clear(self) -> None:
        """Free all shares."""
        for share in self._nodes.values():
            self._free(share)
        self._nodes.clear()
