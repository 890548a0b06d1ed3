# SPDX-License-Identifier: Apache-2.0
"""Broadcasts with different roots, which succeed on each rank. Closing reports the mismatch."""

import numpy as np
import pytest
from conftest import Run
from ranks import together

from ddl_core import Comm
from ddl_core.errors import Mismatch

CALL = """
import numpy as np
import ddl_core
comm = ddl_core.init()
comm.broadcast(np.full(4, comm.rank, np.float32), root=comm.rank)
"""
WORDS = ("broadcast(f32, 4, root 0)", "broadcast(f32, 4, root 1)", "as operation 1")


@pytest.mark.parametrize("links", ["shm", "tcp"])
@pytest.mark.parametrize("end", ["", "comm.close()", "ddl_core.finalize()"])
def test_program_ends_with_an_error(ddlrun: Run, end: str, links: str) -> None:
    ended = ddlrun(2, CALL + end, env={"DDL_LINKS": links})
    assert ended.code == 1, ended.err
    assert "Mismatch: " in ended.err if end else "the last operations differ: " in ended.err
    assert all(word in ended.err for word in WORDS), ended.err


def test_an_exception_comes_first(ddlrun: Run) -> None:
    program = CALL.replace("comm = ", "with ") + "    raise SystemExit(7)\n"
    program = program.replace("init()\ncomm.", "init() as comm:\n    comm.")
    ended = ddlrun(2, program)
    assert ended.code == 7 and "Mismatch: " not in ended.err, ended.err


def test_close_that_raises_frees_the_comm(pair: tuple[Comm, Comm]) -> None:
    def end(rank: int) -> str:
        comm = pair[rank]
        comm.broadcast(np.full(4, rank, np.float32), root=rank)
        try:
            comm.close()
        except Mismatch as error:
            return str(error)
        return ""

    texts = together(end, 2)
    assert any(texts) and all(comm.closed for comm in pair)
    for text in filter(None, texts):
        assert all(word in text for word in WORDS), text
    for comm in pair:
        comm.close()


def test_equal_calls_are_no_mismatch(ddlrun: Run) -> None:
    ended = ddlrun(2, CALL.replace("root=comm.rank", "root=1")).expect_success()
    assert "differ" not in ended.err
