# SPDX-License-Identifier: Apache-2.0
"""The clipping of a job's averaged gradients: elastic.Job(..., clip_norm=1.0)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from torch import nn

from ddl_elastic.sharded.norms import Sums, find_factor, find_norm


class Clipping:
    """The clipping of gradients to the norm `limit`. None means no clipping.

    norm  the norm of the last step's gradients before they were clipped; nan without a limit
    """

    def __init__(self, limit: float | None) -> None:
        self.limit, self.norm = limit, float("nan")

    def find_factor(
        self,
        order: Sequence[nn.Parameter],
        parameters: Sequence[nn.Parameter],
        squares: Callable[[], Iterable[Sums]],
        weight: float,
    ) -> float:
        """Return the factor that clips the gradients, and set `norm`.

        order       the model's parameters in the order in which their squares are added; another
                    bucket_bytes may change the order of buckets
        parameters  the parameters in the order of buckets
        squares     returns the sums of each parameter's squared gradients, before the division by
                    `weight`
        """
        if self.limit is None:
            return 1.0
        found = dict(zip(parameters, squares(), strict=True))
        self.norm = find_norm(found[each] for each in order if each in found) / weight
        return find_factor(self.norm, self.limit)
