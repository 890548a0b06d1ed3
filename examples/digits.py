# SPDX-License-Identifier: Apache-2.0
"""The data and the final check that the digits examples of the smaller adapters share.

The data are the 1797 images of 8 x 8 pixels that come with scikit-learn.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

TEST_IMAGES = 360
BATCH = 64  # images of all processes per step

Array = np.ndarray[Any, Any]
Samples = tuple[Array, Array]


def load() -> tuple[Samples, Samples]:
    """Return images, as float32 of shape (number, 64) from 0 to 1, and their labels, as int32: for
    training, and for the test."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = (data.data[order] / 16).astype(np.float32)
    labels = data.target[order].astype(np.int32)
    train, test = slice(TEST_IMAGES, None), slice(TEST_IMAGES)
    return (images[train], labels[train]), (images[test], labels[test])


def batches(samples: Samples, epochs: int, rank: int, size: int) -> Iterator[Samples]:
    """Yield this rank's part of each batch. An incomplete batch at the end of an epoch is left
    out."""
    if BATCH % size:
        sys.exit(f"a batch of {BATCH} cannot be shared equally by {size} processes")
    images, labels = samples
    shuffle = np.random.default_rng(1)  # the same for all processes
    for _ in range(epochs):
        order = shuffle.permutation(len(images))
        for first in range(0, len(order) - BATCH + 1, BATCH):
            mine = order[first : first + BATCH][rank::size]
            yield images[mine], labels[mine]


def initial_weights(seed: int, *sizes: int) -> list[Array]:
    """Return random weights and zero biases of layers with these numbers of inputs and outputs."""
    random = np.random.default_rng(seed)
    arrays: list[Array] = []
    for inputs, outputs in pairwise(sizes):
        scale = (2 / inputs) ** 0.5
        arrays.append((scale * random.standard_normal((inputs, outputs))).astype(np.float32))
        arrays.append(np.zeros(outputs, np.float32))
    return arrays


def report(ddl: Any, weights: Sequence[Array], right: Array) -> int:
    """Check that all processes have trained the same weights, to the last bit, and print the result
    on rank 0. Return the exit code.

    ddl    the adapter
    right  for each test image, whether it was recognised correctly
    """
    digest = hashlib.sha256(b"".join(np.asarray(each).tobytes() for each in weights)).hexdigest()
    if len(set(ddl.allgather_object(digest))) > 1:
        print(f"rank {ddl.rank()}: the processes' weights differ", file=sys.stderr)
        return 1
    if ddl.rank() == 0:
        accuracy = f"accuracy {100 * np.mean(right):.2f} %"
        print(f"{accuracy}  {ddl.size()} process(es), batch {BATCH}  weights {digest[:16]}")
    return 0
