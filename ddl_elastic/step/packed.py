# SPDX-License-Identifier: Apache-2.0
"""Averages in a wire format over all logical workers, whose bits depend only on the shares.

Each share is packed once. The blocks of an array are divided among the ranks that have shares. Such
a rank receives its blocks of all shares, adds them in the order's tree, and packs their average.
Then all ranks receive the packed averages. So an element is rounded twice, whatever the number of
ranks is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

import ddl_core
from ddl_core import Comm
from ddl_elastic.frameworks.protocol import Array
from ddl_elastic.step.partial import PartialSums

WIRES = ("bf16", "int8", "int4")  # as operations: an average in this format
BLOCK = 128  # elements that are packed together


class PackedAverage:
    """An average that has been started. All ranks start their averages in the same order, and wait
    for them in this order.

    owners  by logical worker: the rank that has its share
    shares  by logical worker of this rank: the packed array
    result  the float32 array for the average
    """

    def __init__(
        self,
        comm: Comm,
        owners: Sequence[int],
        shares: Mapping[int, Array],
        result: Array,
        wire: str,
    ) -> None:
        self._comm, self._workers, self._result, self._wire = comm, len(owners), result, wire
        owned = [[v for v, owner in enumerate(owners) if owner == r] for r in range(comm.size)]
        ends = _cut(result.size, [bool(workers) for workers in owned])
        places = [ddl_core.packed_size(end, wire) for end in ends]
        self._counts = [end - begin for begin, end in pairwise(ends)]
        self._sizes = [end - begin for begin, end in pairwise(places)]
        self._order = [worker for workers in owned for worker in workers]  # as they arrive
        own, size = owned[comm.rank], self._sizes[comm.rank]
        sent = [shares[v][begin:end] for begin, end in pairwise(places) for v in own]
        self._received = np.empty((self._workers, size), np.uint8)
        self._work = comm.alltoallv_async(
            np.concatenate([np.empty(0, np.uint8), *sent]),
            self._received.reshape(-1),
            send_counts=[len(own) * each for each in self._sizes],
            recv_counts=[len(each) * size for each in owned],
        )

    def wait(self) -> None:
        """Complete the average. Raises like Work.wait."""
        self._work.wait()
        own = ddl_core.pack(self._add(), self._wire)
        packed = np.empty(sum(self._sizes), np.uint8)
        self._comm.allgatherv(own, packed, counts=self._sizes)
        ddl_core.unpack(packed, self._wire, self._result)

    def settle(self) -> None:
        """Wait until no operation uses the arrays, after the comm has died."""
        self._work.wait()

    def _add(self) -> Array:
        """Return the average of this rank's blocks."""
        count = self._counts[self._comm.rank]
        places = {worker: place for place, worker in enumerate(self._order)}
        sums = PartialSums(self._workers)
        for worker in range(self._workers):
            packed = self._received[places[worker]]
            sums.add(worker, [ddl_core.unpack(packed, self._wire, np.empty(count, np.float32))])
        (average,) = sums.arrays([(0, self._workers)], 0)
        with np.errstate(all="ignore"):
            average /= np.float32(self._workers)
        return average


def _cut(size: int, takes: Sequence[bool]) -> list[int]:
    """Return where the ranks' elements of an array begin, and its end. Ranks that do not take part
    have no elements, and the others have whole blocks, except at the end."""
    blocks, parts = -(-size // BLOCK), sum(takes)
    before = [sum(takes[:rank]) for rank in range(len(takes) + 1)]
    return [min(size, blocks * part // parts * BLOCK) for part in before]
