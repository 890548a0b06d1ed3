# SPDX-License-Identifier: Apache-2.0
"""The time of a step is fitted to few and inaccurate measurements, and sizes are legal."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddl_elastic.shares.assign import legal_sizes
from ddl_scheduler.planning.model import (
    MemoryModel,
    StepModel,
    StepTiming,
    end_predict,
    model_fit,
    sizes_list,
)

pytestmark = pytest.mark.pure

MODELS = st.builds(
    StepModel,
    shares=st.sampled_from([8, 16, 60, 64]),
    share=st.floats(0.001, 1),
    base=st.floats(0, 0.5),
    doubling=st.floats(0, 0.1),
    across=st.floats(0, 0.5),
)


def measure(model: StepModel, sizes: list[tuple[int, int]]) -> list[StepTiming]:
    return [StepTiming(size, hosts, model.seconds(size, hosts)) for size, hosts in sizes]


@given(model=MODELS)
def test_the_model_is_found_again(model: StepModel) -> None:
    sizes = [(1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (8, 1), (8, 2)]
    fitted = model_fit(model.shares, measure(model, sizes))
    assert fitted.measured
    for size, hosts in [*sizes, (6, 1)]:
        assert fitted.seconds(size, hosts) == pytest.approx(model.seconds(size, hosts), rel=0.02)


@given(
    shares=st.integers(1, 64),
    reports=st.lists(
        st.builds(StepTiming, st.integers(1, 70), st.integers(1, 3), st.floats(1e-6, 1e6)),
        max_size=12,
    ),
)
def test_no_measurement_makes_nonsense(shares: int, reports: list[StepTiming]) -> None:
    fitted = model_fit(shares, reports)
    assert fitted.share > 0 and min(fitted.base, fitted.doubling, fitted.across) >= 0
    assert fitted.measured == any(report.size <= shares for report in reports)
    times = [fitted.seconds(size) for size in range(1, shares + 1)]
    assert all(math.isfinite(time) and time > 0 for time in times)


def test_one_measurement_is_enough_to_begin() -> None:
    fitted = model_fit(16, [StepTiming(4, 1, 2.0)])
    assert fitted.seconds(4) == pytest.approx(2.0, rel=0.01)
    assert fitted.speedup(16) > 0.8 * 16  # the exchange counts as free until it is measured


def test_the_time_of_shares_tells_the_exchange_of_one_size() -> None:
    model = StepModel(12, 0.05, base=0.4)
    (report,) = measure(model, [(6, 1)])
    assert model_fit(12, [report]).speedup(6) > 5
    fitted = model_fit(12, [replace(report, share=0.05)])
    assert fitted.seconds(6) == pytest.approx(report.seconds, rel=0.01)
    assert fitted.seconds(1) == pytest.approx(0.6, rel=0.02)


def test_what_was_measured_across_hosts_may_be_quick_within_one() -> None:
    (report,) = measure(StepModel(12, 0.05, across=1.0), [(6, 3)])
    fitted = model_fit(12, [replace(report, share=0.05)])
    assert fitted.speedup(6, hosts=2) < 0.6 and fitted.speedup(2) > 1.7


def test_a_job_limited_by_the_network_has_a_knee() -> None:
    slow = StepModel(64, 0.1, base=0.3, doubling=0.2)
    fitted = model_fit(64, measure(slow, [(1, 1), (2, 1), (4, 1)]))
    gain = [(fitted.speedup(2 * size) - fitted.speedup(size)) / size for size in (1, 2, 4, 8, 16)]
    assert gain == sorted(gain, reverse=True)
    assert gain[0] > 0.5 > gain[3]


def test_outliers_count_little() -> None:
    model = StepModel(16, 0.1, base=0.02)
    sizes = [(1, 1), (2, 1), (3, 1), (4, 1), (8, 1)]
    reports = [report for report in measure(model, sizes) for _ in range(5)]
    stalled = [*reports, StepTiming(8, 1, 50.0), StepTiming(8, 1, 60.0)]
    assert model_fit(16, stalled) == model_fit(16, reports)
    wrong = [*reports, *[StepTiming(16, 1, 5.0)] * 3]  # all measurements of one size are wrong
    assert model_fit(16, wrong).seconds(4) == pytest.approx(model.seconds(4), rel=0.1)


def test_sizes_without_limits_are_the_legal_ones() -> None:
    assert sizes_list(16, 1, 4096) == legal_sizes(16)
    assert sizes_list(16, 0, 4096) == legal_sizes(16)
    assert sizes_list(16, 3, 8) == (3, 4, 6, 8)
    assert sizes_list(16, 5, 8) == (5, 6, 8)  # a minimum is a legal size
    assert sizes_list(16, 17, 32) == ()


@given(shares=st.integers(1, 64), fixed=st.integers(0, 100), gradient=st.integers(0, 20))
def test_memory_allows_large_sizes_only(shares: int, fixed: int, gradient: int) -> None:
    """Fewer shares on each rank never need more memory, so the sizes that fit are a tail of all
    sizes."""
    sizes = sizes_list(shares, 1, shares, MemoryModel(fixed, gradient), limit=100)
    everything = sizes_list(shares, 1, shares)
    assert sizes == everything[len(everything) - len(sizes) :]
    assert bool(sizes) == (fixed + 2 * gradient <= 100)


def test_memory_counts_partial_gradients() -> None:
    # 16 shares on 2 ranks: 8 on each, so partial sums of 8, 4, 2 and 1, and the result.
    assert MemoryModel(10, 10).fits(16, 2, 60)
    assert not MemoryModel(10, 10).fits(16, 2, 59)
    assert sizes_list(16, 1, 16, MemoryModel(10, 10), limit=60) == (2, 3, 4, 6, 8, 16)


def test_end() -> None:
    model = StepModel(16, 0.1, measured=True)
    assert end_predict(model, 100, 4, 1, now=50.0) == pytest.approx(50 + 100 * 0.4)
    assert end_predict(model, 100, 0, 1, now=50.0) == math.inf
    assert end_predict(StepModel(16, 0.1), 100, 4, 1, now=50.0) == math.inf
