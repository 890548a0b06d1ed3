"""Ordered sums take the tensors of every framework, without a copy of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ddl_core


def makers() -> list[Any]:
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    return [torch.from_numpy, jnp.asarray, pytest.importorskip("tensorflow").constant]


def test_parts_and_results_of_frameworks() -> None:
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    with ddl_core.Endpoint() as endpoint, endpoint.connect([endpoint.address], 0) as alone:
        order = alone.order([0, 0])
        for make in makers():
            result = torch.empty(4, 5)
            assert alone.allreduce_ordered(order, [make(values)], result, op="average") is result
            assert np.array_equal(result.numpy(), values / 2)
