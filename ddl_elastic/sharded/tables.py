# SPDX-License-Identifier: Apache-2.0
"""Tables of the optimizer slots of all tensors, which ranks exchange."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from ddl_core import Comm
from ddl_elastic.frameworks.protocol import Array
from ddl_elastic.sharded.cut import TensorPiece

# For each tensor, as "array.tensor", its slots by name: {"dtype": name} for a slot with an element
# for each element of the tensor, or any other dictionary for a slot that is not sharded.
Table = dict[str, dict[str, dict[str, Any]]]
Bytes = npt.NDArray[np.uint8]


def sharded_names(table: Table, piece: TensorPiece) -> list[str]:
    """Return the names of the sharded slots of the piece's tensor."""
    found = table.get(f"{piece.array}.{piece.tensor}", {})
    return sorted(name for name, each in found.items() if each.keys() == {"dtype"})


def exchange_tables(comm: Comm, own: Table) -> Table:
    """Return the merged tables of all ranks."""
    text = np.frombuffer(json.dumps(own).encode(), np.uint8)
    counts = np.empty(comm.size, np.int64)
    comm.allgather(np.array([text.size]), counts)
    texts = np.empty(int(counts.sum()), np.uint8)
    comm.allgatherv(text, texts, counts=counts.tolist())
    merged: dict[str, Mapping[str, Any]] = {}
    for end, count in zip(accumulate(counts.tolist()), counts.tolist(), strict=True):
        merged.update(json.loads(texts[end - count : end].tobytes()))
    return merged  # type: ignore[return-value]


def as_bytes(array: Array) -> Bytes:
    return array.view(np.uint8)
