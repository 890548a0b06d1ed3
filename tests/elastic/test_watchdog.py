# SPDX-License-Identifier: Apache-2.0
"""The watchdog finds hanging ranks in the output of Comm.report."""

from types import SimpleNamespace
from typing import Any

import pytest

from ddl_core import Config
from ddl_elastic.base.protocol import ConnectGroup
from ddl_elastic.step.watchdog import FIRST, STEPS, Lateness, Watchdog
from ddl_elastic.worker import joining

pytestmark = pytest.mark.pure


def report(*missing: int, sequence: int = 7, status: int = 0, **states: Any) -> dict[str, Any]:
    usual = {"ended": True, "operation": "barrier", "sequence": sequence}
    members = [{"rank": rank, **usual, **(states if rank == 1 else {})} for rank in range(4)]
    return {"status": status, "missing": list(missing), "members": members}


def test_time_adds_up_while_a_rank_does_not_go_on() -> None:
    late = Lateness(most=2.0)
    assert late.update(report(1, 2), 10.0) == {1: 0.0, 2: 0.0}
    assert late.update(report(1, 2), 11.0) == {1: 1.0, 2: 1.0}
    assert late.update(report(1), 12.0) == {1: 2.0}
    assert late.update(report(1, 2), 13.0) == {1: 3.0, 2: 0.0}


def test_one_that_goes_on_is_late_anew() -> None:
    late = Lateness(most=2.0)
    late.update(report(1), 10.0)
    assert late.update(report(1), 11.0) == {1: 1.0}
    assert late.update(report(1, sequence=8), 12.0) == {1: 0.0}


def test_time_that_this_process_was_stopped_does_not_count() -> None:
    late = Lateness(most=2.0)
    late.update(report(1), 10.0)
    assert late.update(report(1), 1000.0) == {1: 2.0}


def test_who_waits_itself_does_not_hang() -> None:
    late = Lateness(most=2.0)
    assert late.update(report(1, 2, ended=False), 10.0) == {2: 0.0}
    none_yet = report(1, ended=False, operation="", sequence=0)
    assert late.update(none_yet, 10.0) == {1: 0.0}
    shrinks = report(1, status=-40, ended=False)
    assert late.update(shrinks, 10.0) == {1: 0.0}


def test_the_limit_grows_with_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    watchdog, clock = Watchdog(2.0), iter([1.0, 101.0, 102.0, 103.0, 106.0])
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    limits = []
    for _ in range(5):
        watchdog.begin_step()
        limits.append(watchdog.limit)
    assert limits == [FIRST * 2.0, STEPS * 100.0, STEPS * 50.5, 5.0, STEPS * 2.0]


@pytest.mark.parametrize("limit", [-1, float("nan"), float("inf")])
def test_no_number_of_seconds(limit: float) -> None:
    with pytest.raises(ValueError, match="watchdog is"):
        Watchdog(limit)


def test_operations_have_no_other_limit() -> None:
    """The limit of libddl is 30 minutes, and a watchdog may allow more."""
    asked: list[Config] = []
    endpoint = SimpleNamespace(connect=lambda _addresses, _rank, config: asked.append(config))
    joining.create(endpoint, 0, ConnectGroup([0], [b""], 0))
    assert asked[0].operation_timeout and asked[0].operation_timeout > 7 * 24 * 3600
