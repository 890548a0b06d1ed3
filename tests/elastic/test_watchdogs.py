# SPDX-License-Identifier: Apache-2.0
"""Time limits of joining workers."""

import pytest

from ddl_elastic.coordinator.watchdogs import FOUNDING, LOOKS, STEPS, JoinWatchdog, StartupWatchdog

pytestmark = pytest.mark.pure


def make(seconds: float = 0.5) -> JoinWatchdog:
    watchdog = JoinWatchdog()
    watchdog.seconds = seconds
    watchdog.update(0.0, 0, {})
    return watchdog


def hangs(
    watchdog: JoinWatchdog, begin: int, end: int, stage: str, step: int = 0
) -> dict[int, float]:
    found = {}
    for now in range(begin, end):
        found = watchdog.update(float(now), step, {3: stage})
    return found


def test_a_newcomer_that_does_not_start() -> None:
    watchdog = make()
    assert hangs(watchdog, 1, 7, "start") == {}
    assert hangs(watchdog, 7, 8, "start") == {3: 6.0}


def test_each_stage_has_its_time() -> None:
    watchdog = make()
    assert hangs(watchdog, 1, 6, "start") == {}
    assert hangs(watchdog, 6, 11, "warm up") == {}
    assert hangs(watchdog, 11, 40, "") == {}  # it waits for the others
    assert hangs(watchdog, 40, 45, "warm up") == {}
    assert 3 in hangs(watchdog, 45, 47, "warm up")


def test_who_joins_waits_for_steps_that_take_long() -> None:
    watchdog = make()
    assert hangs(watchdog, 1, 100, "join") == {}
    assert hangs(watchdog, 100, 101, "join", STEPS - 1) == {}
    assert 3 in hangs(watchdog, 101, 102, "join", STEPS)


def test_cancelled_plans_do_not_restart_the_time_to_join() -> None:
    watchdog = make()
    for begin in (1, 5):
        assert hangs(watchdog, begin, begin + 3, "join") == {}
        assert hangs(watchdog, begin + 3, begin + 4, "", STEPS) == {}  # it waits for another plan
    assert 3 in hangs(watchdog, 9, 11, "join", STEPS)


def test_a_program_that_starts_slowly() -> None:
    watchdog = make()
    watchdog.usual = 4.0
    assert hangs(watchdog, 1, 21, "start") == {}
    assert 3 in hangs(watchdog, 21, 23, "start")


def test_time_in_which_nobody_looked() -> None:
    watchdog = make()
    hangs(watchdog, 1, 3, "start")
    assert watchdog.update(500.0, 0, {3: "start"}) == {}


def test_without_a_watchdog() -> None:
    assert hangs(make(0.0), 1, 500, "start") == {}


def waited(watchdog: StartupWatchdog, begin: int, end: int, ready: dict[int, float]) -> float:
    found = 0.0
    for now in range(begin, end):
        found = watchdog.update(float(now), ready)
    return found


def test_a_founder_that_does_not_come() -> None:
    watchdog, limit = StartupWatchdog(), int(FOUNDING)
    assert waited(watchdog, 1, 500, {}) == 0  # no other worker exists yet
    assert waited(watchdog, 500, 500 + limit, {0: 490.0}) == 0
    ready = {0: 490.0, 1: 500.0}
    assert waited(watchdog, 600, 600 + limit, ready) == 0  # another worker exists
    # They have taken 110 s.
    assert waited(watchdog, 600 + limit, 600 + 5 * 110, ready) == 0
    assert waited(watchdog, 600 + 5 * 110, 602 + 5 * 110, ready) > 550


def test_time_in_which_nobody_looked_at_founders() -> None:
    watchdog = StartupWatchdog()
    watchdog.update(1.0, {0: 1.0})
    watchdog.update(2.0, {0: 1.0})
    assert watchdog.update(5000.0, {0: 1.0}) == 0
    assert watchdog._waited <= 3 * LOOKS
