# SPDX-License-Identifier: Apache-2.0
"""The optimizers of the smaller adapters average gradients in every method that updates."""

import importlib.util
from pathlib import Path

import adapter_list
import pytest
from conftest import Run

START = """
import numpy as np
import ddl_{name} as ddl

ddl.init()
rank, size = ddl.rank(), ddl.size()
MEAN = (size + 1) / 2  # of the ranks' gradients, which are rank + 1


class Steps:
    '''Asserts that each step goes by the rate times the mean gradient.'''

    def __init__(self, weights):
        self.weights, self.before = weights, weights()

    def taken(self, rate, times=1):
        self.before = self.before - times * rate * MEAN
        np.testing.assert_allclose(self.weights(), self.before, rtol=1e-6)

"""
PROGRAMS = {
    adapter.name: adapter.tests()["UPDATES"]
    for adapter in adapter_list.SMALL
    if "UPDATES" in adapter.tests()
}


@pytest.mark.parametrize("framework", PROGRAMS)
def test_every_way_to_update(ddlrun: Run, tmp_path: Path, framework: str) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"there is no {framework}")
    text = START.replace("{name}", framework) + PROGRAMS[framework] + "print('right')\n"
    ended = ddlrun(2, text, limit=120).expect_success()
    assert [ended.lines(rank)[-1] for rank in (0, 1)] == ["right"] * 2
