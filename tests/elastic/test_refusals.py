"""Newcomers that do not fit are refused, and the job goes on."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from ddl_elastic.admission import Candidate
from ddl_elastic.engines import Handle, Slot
from ddl_elastic.staff import Size, Staff, Worker

FIRST = Candidate(0, "a", "s", "g", {}, job={"len(data)": 150})
OTHERS = {
    "its data": (replace(FIRST, member=1, job={"len(data)": 151}), "len(data) is 151, and 150 on"),
    "its state": (replace(FIRST, member=1, state="t"), "starts from another state than rank 0"),
    "its bits": (replace(FIRST, member=1, share="h"), "it computes other bits than rank 0"),
}


def make_worker(member: int) -> Worker:
    handle = Handle(Slot(member, "a", "", 1, "used"), member, None)  # type: ignore[arg-type]
    return Worker(member, handle, iter(()))


@pytest.mark.parametrize("what", OTHERS)
def test_a_newcomer_that_differs(what: str) -> None:
    sent: list[tuple[int, str]] = []
    told: list[tuple[Any, ...]] = []
    first, newcomer = (make_worker(member) for member in range(2))
    staff = Staff(
        [first, newcomer],
        Size(2),
        send=lambda worker, kind, **_: sent.append((worker.member, kind)),
        start=lambda: False,
        stop=lambda _: None,
        epoch=lambda: 1,
        tell=lambda *event, **_: told.append(event),
    )
    staff.connected()
    first.state, first.joined = "running", True
    bits, text = OTHERS[what]
    staff.take(first, "admitted", {"bits": asdict(FIRST)})
    staff.take(newcomer, "warmed", {"bits": asdict(bits)})
    staff.look(3)
    assert newcomer.state == "refused"
    assert sent == [(1, "refused")]
    ((kind, worker, why),) = told
    assert (kind, worker) == ("refused", newcomer)
    assert text in why
