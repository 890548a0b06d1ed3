# SPDX-License-Identifier: Apache-2.0
"""Wire formats from Python: the setting, and the error feedback of an all-reduce."""

import numpy as np
import pytest
from ranks import join, together

from ddl_core import Config, Endpoint
from ddl_core.errors import InvalidArgument

pytestmark = pytest.mark.pure

COUNT, CALLS, RANKS = 10_000, 8, 3


def test_errors_do_not_accumulate() -> None:
    """Ranks that are joined by TCP count as hosts."""
    random = np.random.default_rng(1)
    given = random.standard_normal((RANKS, COUNT)).astype("f")
    exact = given.astype("d").mean(0)
    endpoints = [Endpoint() for _ in range(RANKS)]
    comms = join(endpoints, Config(links=["tcp"], wire="int4"))

    def run(rank: int) -> tuple[float, float]:
        comm, lost, result = comms[rank], np.zeros(COUNT, "f"), np.zeros(COUNT, "f")
        comm.allreduce(given[rank], result, op="average")
        rounded = abs(result - exact).max()
        total = np.zeros(COUNT)
        for _ in range(CALLS):
            total += comm.allreduce(given[rank], result, op="average", residual=lost)
        left = comm.allreduce(lost.astype("d"))
        with pytest.raises(
            InvalidArgument, match="residual has 5 elements of float32; must have 1"
        ):
            comm.allreduce(given[rank], result, residual=lost[:5])
        with pytest.raises(InvalidArgument, match=r"options\.residual is set"):
            comm.allreduce(given[rank], result, op="max", residual=lost)
        return float(rounded), float(abs(total + left / RANKS - CALLS * exact).max())

    for rounded, missing in together(run, RANKS):
        assert 0.01 < rounded < 2 * 5 / 7
        assert missing < 1e-4
    for each in (*comms, *endpoints):
        each.close()


def test_wire_of_a_call_differs_from_the_comms() -> None:
    given = np.random.default_rng(1).standard_normal((RANKS, COUNT)).astype("f")
    exact = given.astype("d").sum(0)
    endpoints = [Endpoint() for _ in range(RANKS)]
    comms = join(endpoints, Config(links=["tcp"], wire="int8"))

    def run(rank: int) -> dict[str | None, float]:
        comm, errors = comms[rank], dict[str | None, float]()
        for wire in (None, "f32", "bf16", "int8", "int4"):
            result = comm.allreduce(given[rank], np.zeros(COUNT, "f"), wire=wire)
            errors[wire] = float(abs(result - exact).max())
        many = np.tile(given[rank], 5)  # no small part of a group
        with comm.group() as group:
            group.allreduce(many, wire="int4")
        assert abs(many[:COUNT] - exact).max() > 0.05
        with pytest.raises(InvalidArgument, match="wire is 'int2'; must be one of f32, bf16, int8"):
            comm.allreduce(given[rank], wire="int2")
        with pytest.raises(InvalidArgument, match=r"options\.wire is int8, which is only for"):
            comm.allreduce(np.ones(4), wire="int8")
        return errors

    for errors in together(run, RANKS):
        assert errors["f32"] < 1e-5 < 1e-3 < errors["bf16"] < 0.1
        assert 0.01 < errors["int8"] == errors[None] < 0.2
        assert 0.2 < errors["int4"] < 4
    for each in (*comms, *endpoints):
        each.close()


def test_setting() -> None:
    with pytest.raises(InvalidArgument, match="wire is 'int2'; must be one of f32, bf16, int8"):
        Config(wire="int2").fields()
    both = Config(wire="int8", invariant="size")
    with Endpoint() as one, pytest.raises(InvalidArgument, match="the wire format is int8, set"):
        one.connect([one.address], 0, both)
