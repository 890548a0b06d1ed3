# SPDX-License-Identifier: Apache-2.0
"""Ordered sums accept the tensors of every framework, without copying them."""

import importlib.util
import sys

import pytest
from conftest import Run

# A separate process: if this one had JAX's backend, every later fork of it would print a warning.
PROGRAM = """
import importlib, sys
import numpy as np
import torch
import ddl_core

values = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
with ddl_core.Endpoint() as endpoint, endpoint.connect([endpoint.address], 0) as alone:
    for module, name in (maker.rsplit(".", 1) for maker in sys.argv[1:]):
        make = getattr(importlib.import_module(module), name)
        order, result = alone.order([0, 0]), torch.empty(4, 5)
        assert alone.allreduce_ordered(order, [make(values)], result, op="average") is result
        assert np.array_equal(result.numpy(), values / 2), module
        array = np.empty_like(values)
        alone.allreduce_ordered(order, [make(values)], array)
        assert np.array_equal(array, values), module
"""
MAKERS = {
    "torch": "torch.from_numpy",
    "jax": "jax.numpy.asarray",
    "tensorflow": "tensorflow.constant",
}


def test_parts_and_results_of_frameworks(run_here: Run) -> None:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("there is no torch")
    here = [make for name, make in MAKERS.items() if importlib.util.find_spec(name)]
    command = [sys.executable, "-c", PROGRAM, *here]
    run_here(command, limit=120).expect_success()
