# SPDX-License-Identifier: Apache-2.0
"""The order of ordered sums: one binary tree over logical workers. Pure.

In a node (first, size), size is a power of two and first is a multiple of it. The node is the sum
of its two halves. If its second half begins at the number of workers or later, it equals its first
half. ddl.h has the same rule (ddl_order_create).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

MAX_WORKERS = 4096  # the same as in ddl.h


def tree_size(workers: int) -> int:
    """Return the size of the root: the smallest power of two that is at least `workers`."""
    if not 1 <= workers <= MAX_WORKERS:
        raise ValueError(f"workers is {workers}; it must be 1 to {MAX_WORKERS}")
    return 1 << (workers - 1).bit_length()


def parts(first: int, last: int, workers: int) -> list[tuple[int, int]]:
    """Return the largest nodes that hold exactly the workers first <= v < last.

    Each node is (first, number of workers). Raises ValueError if the range exceeds 0 to `workers`.
    """
    size = tree_size(workers)
    if not 0 <= first <= last <= workers:
        raise ValueError(f"the range {first} to {last} is not within 0 to {workers}")

    def below(node: int, size: int) -> Iterator[tuple[int, int]]:
        end = min(node + size, workers)
        if node >= last or end <= first:
            return
        if first <= node and end <= last:
            yield node, end - node
            return
        yield from below(node, size // 2)
        yield from below(node + size // 2, size // 2)

    return list(below(0, size))


def parts_of(owned: Iterable[int], workers: int) -> list[tuple[int, int]]:
    """Return the largest nodes that hold exactly these workers, ascending, see `parts`."""
    runs: list[list[int]] = []
    for worker in sorted(owned):
        if runs and runs[-1][1] == worker:
            runs[-1][1] += 1
        else:
            runs.append([worker, worker + 1])
    return [node for first, last in runs for node in parts(first, last, workers)]


def children(node: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the two nodes (first, number of workers) whose sum is this node. The node must have
    several workers."""
    first, count = node
    half = tree_size(count) // 2
    return (first, half), (first + half, count - half)


def parent(node: tuple[int, int], workers: int) -> tuple[int, int]:
    """Return the next larger node (first, number of workers). The node must not be the root."""
    first, count = node
    size = tree_size(count)
    while True:
        size *= 2
        above = first // size * size
        found = above, min(above + size, workers) - above
        if found != node:
            return found
