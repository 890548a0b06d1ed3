# SPDX-License-Identifier: Apache-2.0
"""The norm of gradients, whose bits do not depend on the cut of arrays into ranges. Pure.

The squares are added in double precision and in a fixed order: first in blocks of BLOCK elements of
a tensor, which no cut divides, and then over all blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from ddl_elastic.frameworks.protocol import Array
from ddl_elastic.sharded.cut import BLOCK

CHUNK = BLOCK << 12  # elements whose squares are in memory at once

Sums = npt.NDArray[np.float64]  # of the squares of each block's elements


def count_blocks(elements: int) -> int:
    return -(-elements // BLOCK)


def sum_squares(values: Array) -> Sums:
    """Return the sums of squares of the blocks of these elements. The first element must begin a
    block of its tensor."""
    sums = np.empty(count_blocks(values.size))
    for begin in range(0, values.size, CHUNK):
        part = values[begin : begin + CHUNK]
        squares = np.zeros((count_blocks(part.size), BLOCK))
        np.square(part, out=squares.reshape(-1)[: part.size], dtype=np.float64)
        sums[begin // BLOCK :][: len(squares)] = _fold(squares)
    return sums


def find_norm(sums: Iterable[Sums]) -> float:
    """Return the norm of tensors from the sums of squares of their blocks (see sum_squares)."""
    return math.sqrt(_fold(np.concatenate([np.zeros(1), *sums])))


def find_factor(norm: float, limit: float) -> float:
    """Return the factor that clips gradients of this norm, as torch.nn.utils.clip_grad_norm_ does.
    It is nan if the norm is nan."""
    factor = limit / (norm + 1e-6)
    return 1.0 if factor > 1 else factor


def _fold(values: Sums) -> Any:
    """Sum over the last axis by adding its second half to its first half until one element
    remains."""
    while (length := values.shape[-1]) > 1:
        half = length // 2
        folded = values[..., :half] + values[..., half : 2 * half]
        if length % 2:
            folded[..., 0] += values[..., -1]
        values = folded
    return values[..., 0]
