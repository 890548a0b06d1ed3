"""The shares of a step that a rank has computed, added up as far as the order's tree allows."""

from __future__ import annotations

from collections.abc import Sequence

import ddl_core
from ddl_elastic.framework import Array
from ddl_elastic.order import children, parent

Node = tuple[int, int]  # (first worker, workers in it)


class PartialSums:
    """Of at most log2(workers) + 1 nodes for a contiguous range of workers, in any order.

    A share is a list of arrays; all shares of a step have the same lengths and dtypes. A given
    share belongs to the object: its memory is added to.
    """

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._nodes: dict[Node, list[Array]] = {}
        self.held: set[int] = set()  # the workers whose shares are in it

    def add(self, worker: int, share: Sequence[Array]) -> None:
        """Take in the share of a worker."""
        if worker in self.held:
            raise RuntimeError(f"the share of logical worker {worker} was computed twice")
        self.held.add(worker)
        node, value = (worker, 1), list(share)
        while node != (0, self._workers):
            above = parent(node, self._workers)
            left, right = children(above)
            sibling = right if node == left else left
            if sibling not in self._nodes:
                break
            other = self._nodes.pop(sibling)
            pair = (value, other) if node == left else (other, value)
            for first, second in zip(*pair, strict=True):
                ddl_core.add(first, first, second)
            node, value = above, pair[0]
        self._nodes[node] = value

    def arrays(self, nodes: Sequence[Node], count: int) -> list[list[Array]]:
        """For each of the `count` arrays of a share, its partial sums over `nodes`, which are all
        that the object holds."""
        if sorted(self._nodes) != list(nodes):
            raise RuntimeError(f"partial sums of {sorted(self._nodes)}, not of {list(nodes)}")
        return [[self._nodes[node][number] for node in nodes] for number in range(count)]
