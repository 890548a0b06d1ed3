# SPDX-License-Identifier: Apache-2.0
"""Elastic jobs refuse wire formats, with which bits would depend on the number of workers."""

from typing import Any

import pytest

from ddl_elastic.job import Job
from ddl_elastic.worker.loop import Loop

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("wire", ["int8", "int4"])
def test_wire_formats_are_refused(monkeypatch: pytest.MonkeyPatch, wire: str) -> None:
    monkeypatch.setenv("DDL_WIRE", wire)
    with pytest.raises(ValueError, match=f"DDL_WIRE is {wire}, but an elastic job adds"):
        Job(model=dict, data=[(0, 0)] * 8, loss=max, optimizer=dict, batch=8, logical=8, passes=1)
    with pytest.raises(ValueError, match="Unset DDL_WIRE; on a slow network, use job.rounds"):
        Loop(None, None, batch=8, logical=8)  # type: ignore[arg-type]


def test_a_wire_format_without_rounds() -> None:
    options: dict[str, Any] = {"model": dict, "data": [(0, 0)] * 8, "loss": max, "optimizer": dict}
    with pytest.raises(ValueError, match="wire is 'int4'; it needs local_steps"):
        Job(**options, batch=8, logical=8, passes=1, wire="int4")
