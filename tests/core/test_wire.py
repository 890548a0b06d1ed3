# SPDX-License-Identifier: Apache-2.0
"""Wire formats from Python: the settings, and error feedback."""

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


def test_reduce_scatter_follows_the_comms_wire() -> None:
    given = np.random.default_rng(1).standard_normal((RANKS, RANKS * COUNT)).astype("f")
    exact = given.astype("d").sum(0).reshape(RANKS, COUNT)
    counts = (COUNT, 0, 2 * COUNT)
    endpoints = [Endpoint() for _ in range(RANKS)]
    comms = join(endpoints, Config(links=["tcp"], wire="int8"))

    def run(rank: int) -> dict[str | None, float]:
        comm, errors = comms[rank], dict[str | None, float]()
        send, result = given[rank], np.zeros(COUNT, "f")
        for wire in (None, "f32", "bf16", "int8", "int4"):
            comm.reduce_scatter(send, result, wire=wire)
            errors[wire] = float(abs(result - exact[rank]).max())
        lost, total = np.zeros_like(send), np.zeros(COUNT)
        for _ in range(CALLS):
            total += comm.reduce_scatter(send, result, residual=lost, wire="int4")
        left = comm.reduce_scatter(lost.astype("d"), np.zeros(COUNT))
        errors["feedback"] = float(abs(total + left - CALLS * exact[rank]).max())
        own = comm.reduce_scatterv(send, np.zeros(counts[rank], "f"), counts=counts, wire="int4")
        if rank != 1:
            errors["uneven"] = float(abs(own - exact.flat[sum(counts[:rank]) :][: len(own)]).max())
        with pytest.raises(
            InvalidArgument, match=f"residual has {COUNT} elements of float32; must have 3"
        ):
            comm.reduce_scatter(send, result, residual=lost[:COUNT])
        return errors

    for rank, errors in enumerate(together(run, RANKS)):
        assert errors["f32"] < 1e-5 < 1e-3 < errors["bf16"] < 0.1
        assert 0.01 < errors["int8"] == errors[None] < 0.2
        assert 0.2 < errors["int4"] < 4
        assert errors["feedback"] < 1e-4
        assert rank == 1 or 0.2 < errors["uneven"] < 4
    for each in (*comms, *endpoints):
        each.close()


def test_allgather_is_exact_unless_its_own_wire_is_set() -> None:
    given = np.random.default_rng(1).standard_normal((RANKS, COUNT)).astype("f")
    endpoints = [Endpoint() for _ in range(RANKS)]
    comms = join(endpoints, Config(links=["tcp"], wire="int8"))

    def run(rank: int) -> dict[str | None, bytes]:
        comm, results = comms[rank], dict[str | None, bytes]()
        for wire in (None, "f32", "bf16", "int8", "int4"):
            result = np.zeros((RANKS, COUNT), "f")
            results[wire] = comm.allgather(given[rank], result, wire=wire).tobytes()
        result[rank] = given[rank]
        results["in place"] = comm.allgather(result, wire="int4").tobytes()
        uneven = [COUNT, 0, COUNT]
        result = np.zeros((2, COUNT), "f")
        own = given[rank][: uneven[rank]]
        results["uneven"] = comm.allgatherv(own, result, counts=uneven, wire="int4").tobytes()
        with pytest.raises(InvalidArgument, match=r"options\.wire is int8, which is only for f32"):
            comm.allgather(np.ones(4), np.ones(4 * RANKS), wire="int8")
        return results

    first, *others = together(run, RANKS)
    assert all(results == first for results in others)
    assert first[None] == first["f32"] == given.tobytes()
    assert first["in place"] == first["int4"]
    assert first["uneven"] == np.frombuffer(first["int4"], "f").reshape(RANKS, -1)[::2].tobytes()
    for wire, most in {"bf16": 0.02, "int8": 0.05, "int4": 1.0}.items():
        error = abs(np.frombuffer(first[wire], "f").reshape(RANKS, COUNT) - given).max(1)
        assert (most / 10 < error).all() and (error < most).all(), wire
    for each in (*comms, *endpoints):
        each.close()


def test_setting() -> None:
    with pytest.raises(InvalidArgument, match="wire is 'int2'; must be one of f32, bf16, int8"):
        Config(wire="int2").fields()
    both = Config(wire="int8", invariant="size")
    with Endpoint() as one, pytest.raises(InvalidArgument, match="the wire format is int8, set"):
        one.connect([one.address], 0, both)
