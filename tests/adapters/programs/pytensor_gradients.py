# SPDX-License-Identifier: Apache-2.0
"""Run by test_pytensor.py on two ranks: gradients, in each of the given modes.

python pytensor_gradients.py MODE ...
"""

import sys
import warnings
from typing import Any

import numpy as np

import ddl_pytensor as ddl
from ddl_core.errors import InvalidState
from ddl_pytensor.framework import framework, tensor

ddl.init()
rank, size = ddl.rank(), ddl.size()
SUM = size * (size + 1) / 2  # the sum of the ranks' weights 1, 2, ...


def derivative(operation: Any, rows: int, mode: str) -> np.ndarray:
    """Return the gradient of the sum of the ranks' results, each weighted by rank + 1."""
    x = tensor.vector("x", dtype="float64")
    cost = (operation(x) * (rank + 1.0)).sum()
    value = np.arange(rows, dtype=np.float64)
    return np.asarray(framework.function([x], framework.grad(cost, x), mode=mode)(value))


def check(mode: str) -> None:
    cases = [
        (ddl.allreduce, 3, SUM),
        (lambda x: ddl.allreduce(x, op="average"), 3, SUM / size),
        (lambda x: ddl.broadcast(x, 1), 3, SUM if rank == 1 else 0),
        (ddl.allgather, 3, SUM),
        (ddl.reduce_scatter, 2 * size, np.repeat(np.arange(size) + 1.0, 2)),
        (ddl.alltoall, 2 * size, np.repeat(np.arange(size) + 1.0, 2)),
    ]
    for operation, rows, expected in cases:
        got = derivative(operation, rows, mode)
        np.testing.assert_allclose(got, np.broadcast_to(expected, rows), err_msg=mode)

    # Several gradients at once, of which one does not depend on the cost.
    x, y = tensor.vector("x", dtype="float64"), tensor.matrix("y", dtype="float64")
    first, _ = ddl.grouped_allreduce([x, y])
    of_x, of_y = framework.grad(first.sum() + 0 * y.sum(), [x, y])
    function = framework.function([x, y], [of_x, of_y], mode=mode)
    got_x, got_y = function(np.ones(2), np.ones((2, 1)))
    assert got_x.tolist() == [size, size] and not got_y.any()

    # Independent operations have the same order on all ranks, so the sums are not confused.
    results = [ddl.allreduce(x + number) for number in range(8)]
    got = framework.function([x], results, mode=mode)(np.zeros(2))
    assert [each.tolist() for each in got] == [[size * n, size * n] for n in range(8)], got

    # The same with graphs that differ, because constants depend on the rank: on rank 0, both are
    # sums of x.
    results = [ddl.allreduce(x + float(rank)), ddl.allreduce(x - float(rank))]
    got = framework.function([x], results, mode=mode)(np.full(2, 9.0))
    assert [each[0] for each in got] == [9 * size + SUM - size, 9 * size - SUM + size], got

    # New values of floats are averaged, others stay as they are.
    weight = framework.shared(np.zeros(2))
    steps = framework.shared(np.zeros((), np.int64))
    updates = ddl.average_updates({weight: weight + rank, steps: steps + 1})
    framework.function([], [], updates=updates, mode=mode)()
    assert weight.get_value().tolist() == [(size - 1) / 2] * 2 and steps.get_value() == 1


def check_refused() -> None:
    x = tensor.vector("x", dtype="float64")
    either = [ddl.allreduce(x), ddl.allreduce(x)]
    ours, theirs = (either[part % 2].owner.op.number for part in (rank, rank + 1))
    try:
        framework.function([x], either[rank % 2], mode=sys.argv[-1])(np.ones(2))
    except InvalidState as error:
        said = f"rank {rank} runs operation {ours} of its graphs, but the ranks run operations"
        assert f"{said} {min(ours, theirs)} to {max(ours, theirs)}" in str(error), error
    else:
        raise AssertionError("the ranks ran different operations")
    try:
        framework.function([x], framework.grad(ddl.allreduce(x, op="max").sum(), x))
    except Exception as error:
        assert "Null" in f"{type(error).__name__} {error}" or "grad" in str(error), error
    else:
        raise AssertionError("max has no gradient")
    for wrong in ([1.0], 1.0, "x"):
        try:
            ddl.allreduce(wrong)
        except ValueError as error:
            assert "not a tensor of" in str(error)
        else:
            raise AssertionError(wrong)


warnings.simplefilter("ignore")
for mode in sys.argv[1:]:
    check(mode)
check_refused()
ddl.shutdown()
print("right")
