# SPDX-License-Identifier: Apache-2.0
"""ddl_elastic, as a user with a strict type checker writes it."""

from __future__ import annotations

from ddl_elastic import Assignment, JobFailed, assign, legal_sizes, parts

sizes: list[int] = list(legal_sizes(8))
shares: Assignment = assign(8, [1.0, 1.0, 0.5])
nodes: list[tuple[int, int]] = parts(0, 3, 8)
print(shares.owners, nodes, JobFailed.__name__, sizes)
