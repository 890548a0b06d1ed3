# SPDX-License-Identifier: Apache-2.0
"""The outer optimizer of rounds with JAX takes two steps, and each is compared with numbers
computed by hand. A program of its own, since a process that has used JAX must not fork."""

from typing import Any

import numpy as np

from ddl_jax.elastic.rounds import Nesterov, StateChanges


def state(weight: float, moment: float, count: int) -> dict[str, Any]:
    return {
        "count": np.int32(count),
        "moment": np.float32(moment),
        "parameters": {"w": np.full(2, weight, np.float32)},
    }


outer = StateChanges(Nesterov(learning_rate=0.5, momentum=0.5), state(1, 0, 0))
assert [spec.op for spec in outer.specs()] == ["sum", "average", "average"]
for start, ends, expected in (
    (1.0, (0.5, -0.5), 0.25),  # gradient 1, velocity 1
    (0.25, (0.25, -0.25), -0.0625),  # gradient 0.25, velocity 0.75
):
    before = state(start, 0, 0)
    after = [state(ends[0], 2, 3), state(ends[1], 4, 5)]
    shares = [list(outer.changes(before, each, worker)) for worker, each in enumerate(after)]
    count, *floats = zip(*shares, strict=True)
    found = outer.step(before, [sum(count), *((a + b) / 2 for a, b in floats)])
    assert found["parameters"]["w"].tolist() == [expected] * 2, found
    assert (found["moment"], found["count"]) == (3, 3), found
