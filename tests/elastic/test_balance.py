# SPDX-License-Identifier: Apache-2.0
"""Shares by measured speed: a slow worker gets fewer, and the result stays the same."""

import math
import re
from typing import Any

import pytest

from ddl_elastic.shares.balance import AGAIN, SLOW_FOR, SPACING, STEPS, Balance, ShareTime

pytestmark = pytest.mark.pure


@pytest.mark.slow
def test_a_slow_worker_gets_fewer_shares(jobs: Any) -> None:
    _, report = jobs.train({"workers": 2, "passes": 40, "slow": {"1": 0.01}})
    balanced = [each for each in report["events"] if each["kind"] == "balanced"]
    assert balanced
    found = re.fullmatch(
        r"shares by speed from step (\d+) on: rank 0 (\d+), rank 1 (\d+)", balanced[0]["text"]
    )
    assert found
    step, fast, slow = map(int, found.groups())
    assert STEPS < step < 250
    assert fast + slow == 12
    assert fast > slow
    shares = {member: worker["shares"] for member, worker in report["workers"].items()}
    assert shares["0"] > shares["1"]


@pytest.mark.slow
def test_a_worker_that_was_slow_for_a_while(jobs: Any) -> None:
    slow = {"workers": 2, "passes": 64, "slow": {"0": 0.005, "1": 0.1}, "slow_shares": {"1": 150}}
    _, report = jobs.train({**slow, "again": 3})
    texts = [each["text"] for each in report["events"] if each["kind"] == "balanced"]
    counts = [int(re.findall(r"rank 1 (\d+)", text)[0]) for text in texts]
    assert counts[0] == 0, texts
    assert counts[-1] >= 4, texts


def test_a_pace_follows_the_latest_reports() -> None:
    pace = ShareTime()
    assert math.isnan(pace.seconds)
    pace.record(4, 0.4)
    assert pace.seconds == pytest.approx(0.1)
    pace.record(4, 0.4)  # nothing new
    assert pace.seconds == pytest.approx(0.1)
    for number in range(1, 31):
        pace.record(4 + number, 0.4 + 0.5 * number)
    assert pace.seconds == pytest.approx(0.5, rel=0.01)


def looks(balance: Balance, seconds: dict[int, float], begin: float, count: int) -> list[int]:
    return [t for t in range(count) if balance.is_uneven(begin + t, int(begin) + t, seconds, 16)]


def test_another_map_has_to_win_for_some_steps() -> None:
    balance = Balance()
    assert balance.speeds([0, 1]) == []
    assert looks(balance, {0: 0.1, 1: 0.1}, 0, 100) == []
    assert looks(balance, {0: 0.1, 1: 0.3}, 100, 60) == [STEPS]
    assert balance.speeds([0, 1]) == pytest.approx([10, 1 / 0.3])
    assert balance.speeds([0, 1, 2]) == pytest.approx([10, 1 / 0.3, (10 + 1 / 0.3) / 2])
    assert balance.speeds([2]) == []
    found = looks(balance, {0: 0.3, 1: 0.1}, 200, 60)
    assert found == [STEPS]
    assert STEPS > SPACING


def test_nothing_is_known_of_a_newcomer() -> None:
    assert looks(Balance(), {0: 0.1, 1: math.nan}, 0, 100) == []


def test_one_without_shares_is_tried_again() -> None:
    balance = Balance()
    seconds = {0: 0.1, 1: 0.1, 2: 9.9}
    assert looks(balance, seconds, 0, STEPS + 1) == [STEPS]
    begin = STEPS + 1
    assert looks(balance, seconds, begin, int(AGAIN) + 1) == [AGAIN]
    assert balance.tried == {2: 0.1}
    assert balance.speeds([0, 1, 2]) == pytest.approx([10, 10, 10])
    begin += int(AGAIN) + 1
    found = looks(balance, seconds, begin, 100)  # it was measured, and is still slow
    assert found == [STEPS, STEPS + 1 + 2 * AGAIN]
    seconds[2] = 0.1  # it was measured, and is as fast as the others
    assert looks(balance, seconds, begin + 100, 200) == []


def test_others_are_balanced_while_one_has_no_share() -> None:
    seconds = dict.fromkeys(range(16), 0.1) | {1: 0.3, 16: math.nan}
    balance = Balance()
    assert looks(balance, seconds, 0, 60) == [STEPS]
    assert balance.speeds([1, 16]) == pytest.approx([1 / 0.3, 10])


def test_stragglers_are_told_once() -> None:
    balance = Balance()
    seconds = {0: 0.1, 1: 0.1, 2: 0.3, 3: math.nan}
    told = [t for t in range(200) if balance.stragglers(t, seconds)]
    assert told == [SLOW_FOR]
    assert not balance.stragglers(300, {0: math.nan})
