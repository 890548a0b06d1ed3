# SPDX-License-Identifier: Apache-2.0
"""The measurement of a job's steps and shares while it runs."""

import pytest

from ddl_scheduler.runner.throughput import LEAST_STEPS, ThroughputEstimator

pytestmark = pytest.mark.pure


def run(pace: ThroughputEstimator, begin: float, seconds: float, size: int, hosts: int) -> None:
    for step in range(21):
        shares = 12 * step
        pace.see(begin + seconds * step, step, size, hosts, shares, 0.02 * shares)


def test_steps_and_shares_are_measured_by_workers_and_hosts() -> None:
    pace = ThroughputEstimator()
    run(pace, 0.0, 0.3, 2, 1)
    run(pace, 10.0, 0.5, 2, 2)
    (one, two) = pace.measured()
    assert one == (2, 1, pytest.approx(0.3), pytest.approx(0.02))
    assert two == (2, 2, pytest.approx(0.5), pytest.approx(0.02))
    other = ThroughputEstimator()
    other.load(pace.measured())
    assert other.measured() == pace.measured()


def test_the_first_step_after_a_change_does_not_count() -> None:
    pace = ThroughputEstimator()
    pace.see(0.0, 0, 2)
    pace.see(9.0, 1, 2)
    for step in range(2, 2 + LEAST_STEPS):
        pace.see(9.0 + 0.4 * (step - 1), step, 2)
    assert pace.measured() == [(2, 1, pytest.approx(0.4), 0.0)]
