# SPDX-License-Identifier: Apache-2.0
"""Rates over the last seconds."""

import pytest

from ddl_elastic.coordinator.rate import WINDOW, Rate

pytestmark = pytest.mark.pure


def test_a_rate() -> None:
    rate = Rate()
    assert rate.per_second == 0.0
    rate.record(1.0, 10)
    assert rate.per_second == 0.0
    rate.record(3.0, 14)
    assert rate.per_second == 2.0


def test_what_is_long_ago_does_not_count() -> None:
    rate = Rate()
    for second in range(100):
        rate.record(float(second), min(second, 80))
    assert rate.per_second == 0.0
    assert len(rate._seen) <= WINDOW + 2


def test_what_begins_anew() -> None:
    rate = Rate()
    rate.record(0.0, 100)
    rate.record(1.0, 0)
    rate.record(2.0, 3)
    assert rate.per_second == 3.0
