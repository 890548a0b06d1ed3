# SPDX-License-Identifier: Apache-2.0
"""`ddl_core.empty`: arrays that ranks on one host read in place."""

import textwrap

import numpy as np
import pytest
from conftest import Run

import ddl_core
from ddl_core.errors import InvalidState

SUMS = """
import gc
import numpy as np
import ddl_core
comm = ddl_core.init()
for dtype in ("float32", "float64", "int8", "complex64"):
    send, recv = (ddl_core.empty((1000, 500), dtype) for _ in range(2))
    assert send.dtype == dtype and send.shape == (1000, 500) and not send.any()
    for number in range(5):
        send[:] = comm.rank + number
        comm.allreduce(send, recv)
        assert (recv == 1 + 2 * number).all() and (send == comm.rank + number).all()
        comm.broadcast(send[1:], root=1)
        assert (send[1:] == 1 + number).all()
kept = ddl_core.empty(1 << 20, np.uint8)[5:]
for _ in range(300):
    ddl_core.empty(1 << 20, np.uint8)
gc.collect()
assert ddl_core.empty(0).shape == (0,) and ddl_core.empty(()).shape == ()
for wrong in ((-1, "f4"), (3, object)):
    try:
        ddl_core.empty(*wrong)
    except ddl_core.errors.InvalidArgument:
        continue
    raise AssertionError(wrong)
ddl_core.finalize()
kept[:] = 1  # outlives its endpoint
"""


def test_arrays_are_like_any_others(ddlrun: Run) -> None:
    ddlrun(2, textwrap.dedent(SUMS)).expect_success()


FORKS = """
import os
import numpy as np
import ddl_core
comm = ddl_core.init()
array = ddl_core.empty(25_000_000, np.float32)
for number in range(3):
    array[:] = number
    comm.barrier()
    ready, told = os.pipe()
    child = os.fork()
    if not child:
        os.read(ready, 1)
        whole = bool((array == number).all())
        array[:] = -1
        os._exit(0 if whole else 1)
    comm.barrier()
    array[:] = number + 1
    comm.allreduce(array)
    os.write(told, b"x")
    assert os.waitpid(child, 0)[1] == 0
    assert (array == comm.size * (number + 1)).all()
ddl_core.finalize()
"""


def test_a_forked_child_has_the_bytes_of_the_fork(ddlrun: Run) -> None:
    ddlrun(2, textwrap.dedent(FORKS)).expect_success()


def test_without_a_world() -> None:
    with pytest.raises(InvalidState, match="init"):
        ddl_core.empty(3, np.float32)
