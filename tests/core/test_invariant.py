# SPDX-License-Identifier: Apache-2.0
"""Invariant sums from Python: the settings, the helper for parts, and ordered reduce-scatter."""

import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from ranks import join, operand, together, tree

from ddl_core import Comm, Config, Endpoint
from ddl_core.errors import DdlError, InvalidArgument

pytestmark = pytest.mark.pure

WORKERS = 8
COUNT = 999
CREATIONS = 30


def comms(size: int, config: Config) -> Iterator[Sequence[Comm]]:
    endpoints = [Endpoint() for _ in range(size)]
    made = join(endpoints, config)
    yield made
    for closing in (*made, *endpoints):
        closing.close()


@pytest.fixture(params=[1, 2, 3, 5])
def by_size(request: pytest.FixtureRequest) -> Iterator[Sequence[Comm]]:
    yield from comms(request.param, Config(invariant="size", links=["tcp"]))


@pytest.fixture(params=[1, 2, 3, 5])
def by_ranks(request: pytest.FixtureRequest) -> Iterator[Sequence[Comm]]:
    yield from comms(request.param, Config(invariant=f"ranks:{WORKERS}"))


def test_size_has_the_bits_of_the_tree_in_any_slices(by_size: Sequence[Comm]) -> None:
    size = len(by_size)

    def run(rank: int) -> list[bytes]:
        results = []
        for pieces in (1, 3, 37):
            whole = operand(rank, COUNT)
            for piece in np.split(whole, pieces):
                by_size[rank].allreduce(piece)
            results.append(whole.tobytes())
        return results

    for results in together(run, size):
        assert results == [tree(0, size, COUNT).tobytes()] * 3


def test_workers_have_the_same_bits_on_any_ranks(by_ranks: Sequence[Comm]) -> None:
    size = len(by_ranks)

    def run(rank: int) -> tuple[bytes, bytes, bytes]:
        comm = by_ranks[rank]
        order = comm.order(WORKERS)
        own = range(rank * WORKERS // size, (rank + 1) * WORKERS // size)
        parts = order.sums(rank, np.stack([operand(v, COUNT) for v in own]))
        total = comm.allreduce_ordered(order, parts, np.empty(COUNT, "f"))
        counts = [COUNT // size] * (size - 1) + [COUNT - COUNT // size * (size - 1)]
        block = np.empty(counts[rank], "f")
        comm.reduce_scatter_ordered(order, parts, block, counts=counts)
        even = [part[: COUNT // size * size] for part in parts]
        equal = comm.reduce_scatter_ordered(order, even, np.empty(COUNT // size, "f"))
        return total.tobytes(), block.tobytes(), equal.tobytes()

    expected, each = tree(0, WORKERS, COUNT), COUNT // size
    for rank, (total, block, equal) in enumerate(together(run, size)):
        end = COUNT if rank == size - 1 else (rank + 1) * each
        assert total == expected.tobytes()
        assert block == expected[rank * each : end].tobytes()
        assert equal == expected[rank * each : (rank + 1) * each].tobytes()


def test_plain_operand_under_ranks_names_the_call(by_ranks: Sequence[Comm]) -> None:
    for comm in by_ranks:
        with pytest.raises(InvalidArgument, match=r"ranks:8.*allreduce_ordered"):
            comm.allreduce(np.ones(3, "f"))
        with pytest.raises(InvalidArgument, match="but rank 0 has"):
            comm.order(WORKERS).sums(0, np.ones((9, 3), "f"))


@pytest.mark.parametrize("value", ["ranks", "ranks:0", "ranks:4097", "ranks:x", "sizes"])
def test_unknown_setting_is_refused(value: str) -> None:
    with pytest.raises(InvalidArgument, match="invariant"):
        Config(invariant=value).fields()


def test_different_settings_are_named_on_all_ranks() -> None:
    """Many creations: a rank that finds the difference first must not end the creations of slower
    ranks."""
    settings = ["ranks:8", "size", "size"]
    endpoints = [Endpoint() for _ in settings]
    addresses = [endpoint.address for endpoint in endpoints]
    start = threading.Barrier(len(settings))

    def run(rank: int) -> list[str]:
        config = Config(invariant=settings[rank], links=["tcp"], timeout=20)
        messages = []
        for _ in range(CREATIONS):
            start.wait()
            with pytest.raises(DdlError) as raised:
                endpoints[rank].connect(addresses, rank, config)
            messages.append(str(raised.value))
        return messages

    for rank, messages in enumerate(together(run, len(settings))):
        other = "size on rank 1 " if rank == 0 else "ranks:8 on rank 0 "
        expected = f"DDL_INVARIANT is {settings[rank]} on rank {rank} "
        unclear = [text for text in messages if expected not in text or other not in text]
        assert not unclear, unclear
    for endpoint in endpoints:
        endpoint.close()
