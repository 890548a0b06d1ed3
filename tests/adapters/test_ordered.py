# SPDX-License-Identifier: Apache-2.0
"""Ordered sums take the tensors of every framework, without a copy of their own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Run

# In a process of its own: JAX's backend would make every later fork of this one a warning.
PROGRAM = """
import numpy as np
import torch
import ddl_core

make = MAKE
values = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
with ddl_core.Endpoint() as endpoint, endpoint.connect([endpoint.address], 0) as alone:
    order, result = alone.order([0, 0]), torch.empty(4, 5)
    assert alone.allreduce_ordered(order, [make(values)], result, op="average") is result
    assert np.array_equal(result.numpy(), values / 2)
    array = np.empty_like(values)
    alone.allreduce_ordered(order, [make(values)], array)
    assert np.array_equal(array, values)
"""


@pytest.mark.parametrize(
    ("framework", "make"),
    [
        ("torch", "torch.from_numpy"),
        ("jax", "__import__('jax').numpy.asarray"),
        ("tensorflow", "__import__('tensorflow').constant"),
    ],
)
def test_parts_and_results_of_frameworks(
    run_program: Run, tmp_path: Path, framework: str, make: str
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip(framework, exc_type=ImportError)
    run_program(
        [sys.executable, "-c", PROGRAM.replace("MAKE", make)], cwd=tmp_path
    ).expect_success()
