# SPDX-License-Identifier: Apache-2.0
"""Comms that are created from a comm."""

from typing import Any

import numpy as np
import pytest
from ranks import join, together

from ddl_core import Comm, Config, Endpoint
from ddl_core.errors import InvalidArgument, InvalidState

pytestmark = pytest.mark.pure


@pytest.fixture
def four() -> Any:
    endpoints = [Endpoint(secret="test") for _ in range(4)]
    yield join(endpoints)
    for endpoint in endpoints:
        endpoint.close()


def total(comm: Comm, value: int) -> int:
    return int(comm.allreduce(np.full(3, value))[0])


def test_split(four: tuple[Comm, ...]) -> None:
    def split(rank: int) -> tuple[int, int, int]:
        part = four[rank].split(rank % 2, key=-rank)
        assert part is not None
        return part.rank, part.size, total(part, rank)

    assert together(split, 4) == ((1, 2, 2), (1, 2, 4), (0, 2, 2), (0, 2, 4))


def test_split_without_a_color(four: tuple[Comm, ...]) -> None:
    def split(rank: int) -> int | None:
        part = four[rank].split(None if rank == 2 else 7)
        return None if part is None else total(part, rank)

    assert together(split, 4) == (4, 4, None, 4)


def test_subset(four: tuple[Comm, ...]) -> None:
    def subset(rank: int) -> tuple[int, int] | None:
        if rank == 1:
            return None
        part = four[rank].subset([3, 0, 2])
        return part.rank, total(part, rank)

    assert together(subset, 4) == ((1, 5), None, (2, 5), (0, 5))


def test_subset_without_oneself(four: tuple[Comm, ...]) -> None:
    with pytest.raises(InvalidArgument):
        four[0].subset([1, 2])


def test_duplicates_are_independent(four: tuple[Comm, ...]) -> None:
    twins = together(lambda rank: four[rank].duplicate(Config(operation_timeout=30)), 4)
    work = four[0].allreduce_async(np.ones(3))
    assert together(lambda rank: total(twins[rank], rank), 4) == (6,) * 4
    assert not work.done()
    for comm in four:
        comm.close()
    assert together(lambda rank: total(twins[rank], rank), 4) == (6,) * 4


def test_endpoint_closes_derived_comms() -> None:
    with Endpoint() as endpoint:
        part = endpoint.connect([endpoint.address], 0).duplicate()
        assert total(part, 5) == 5
    assert part.closed


def test_derived_comm_keeps_the_comm_that_owns_the_endpoint() -> None:
    endpoint = Endpoint()
    part = endpoint.connect([endpoint.address], 0, owned=True).duplicate()
    del endpoint
    assert total(part, 5) == 5
    part.close()


def test_closed_comm_derives_none(alone: Comm) -> None:
    alone.close()
    for call in (alone.duplicate, lambda: alone.split(0), lambda: alone.subset([0])):
        with pytest.raises(InvalidState, match="the comm is closed"):
            call()
