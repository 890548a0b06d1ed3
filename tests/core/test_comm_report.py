"""Report and trace of a comm are readable, whatever happened to it."""

from __future__ import annotations

import numpy as np
import pytest

from ddl_core import Comm
from ddl_core.errors import Aborted


def test_message_records_are_freed_with_the_comm(pair: tuple[Comm, Comm]) -> None:
    first, second = pair
    work = first.recv_async(np.zeros(3, np.float32), 1, tag=2**31 - 1)
    assert [p["operation"] for p in first.report()["pending"]] == [
        "receive(f32, 3, from rank 1, tag 2147483647)"
    ]
    second.abort("enough")
    with pytest.raises(Aborted):
        work.wait(10)
    assert first.report()["pending"] == []
    assert first.counters()["pending"] == 0


def test_a_reason_cut_within_a_character(pair: tuple[Comm, Comm]) -> None:
    first, second = pair
    first.abort("停" * 200)
    with pytest.raises(Aborted, match="停停停"):
        second.barrier()
    assert len(second.report()["members"]) == 2
