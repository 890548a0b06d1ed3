# SPDX-License-Identifier: Apache-2.0
"""Samples and seeds are functions of the job's constants, the step and the logical worker."""

import hashlib
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddl_elastic.shares.sampler import Sampler, permute, sample_seed, share_seed

pytestmark = pytest.mark.pure


def used(sampler: Sampler, steps: int) -> list[tuple[int, int]]:
    found = []
    for step, worker in itertools.product(range(steps), range(sampler.workers)):
        share = sampler.share(step, worker)
        found += zip(share.passes.tolist(), share.indices.tolist(), strict=True)
    return found


@given(
    samples=st.integers(1, 60),
    workers=st.integers(1, 6),
    size=st.integers(1, 7),
    seed=st.integers(-(2**63), 2**63 - 1),
)
def test_each_pass_has_each_sample_once(samples: int, workers: int, size: int, seed: int) -> None:
    sampler = Sampler(samples, size * workers, workers, seed)
    found = used(sampler, sampler.steps(3))
    assert len(found) < 3 * samples + sampler.batch
    for number in range(3):
        assert sorted(i for p, i in found if p == number) == list(range(samples))
    assert [p for p, _ in found] == sorted(p for p, _ in found)


@given(samples=st.integers(1, 5000), seed=st.integers(0, 99), number=st.integers(0, 10**6))
def test_permutation(samples: int, seed: int, number: int) -> None:
    whole = permute(np.arange(samples), samples, seed, number)
    assert np.array_equal(np.sort(whole), np.arange(samples))
    some = np.arange(samples)[::-3]
    assert np.array_equal(permute(some, samples, seed, number), whole[some])


@pytest.mark.parametrize("samples", [300, 5000])
def test_small_shares_are_parts_of_large_ones(samples: int) -> None:
    whole = Sampler(samples, 3 * 600, 3, 7)
    parts = Sampler(samples, 3 * 600, 60, 7)
    assert used(parts, 4) == used(whole, 4)


def test_the_number_of_logical_workers_does_not_change_a_batch() -> None:
    batches = [used(Sampler(1000, 24, workers, 7), 50) for workers in (1, 2, 3, 8, 24)]
    assert all(batch == batches[0] for batch in batches)


def test_passes_and_seeds_differ() -> None:
    orders = [tuple(permute(np.arange(50), 50, s, p)) for s in range(20) for p in range(20)]
    assert len(set(orders)) == len(orders)


@pytest.mark.parametrize("samples", [5, 24, 97])
def test_every_sample_is_equally_likely_everywhere(samples: int) -> None:
    """Pearson's test of how often each sample is at each position, with a limit of 6 standard
    deviations."""
    passes = 2000
    counts = np.zeros((samples, samples))
    for number in range(passes):
        counts[np.arange(samples), permute(np.arange(samples), samples, 3, number)] += 1
    expected = passes / samples
    chi2, freedom = ((counts - expected) ** 2 / expected).sum(), (samples - 1) ** 2
    assert abs(chi2 - freedom) < 6 * np.sqrt(2 * freedom)


def test_neighbours_are_independent() -> None:
    """In random order, the next sample is the greater one half of the time."""
    order = permute(np.arange(100_000), 100_000, 1, 0)
    ups = (np.diff(order) > 0).sum()
    assert abs(ups - 50_000) < 6 * np.sqrt(100_000 / 12)
    assert abs(np.corrcoef(order[1:], order[:-1])[0, 1]) < 6 / np.sqrt(100_000)


def test_a_large_data_set() -> None:
    samples = 3 * 2**40
    share = Sampler(samples, 64, 4, 1).share(10**9, 3)
    assert len(set(share.indices.tolist())) == 16
    assert share.indices.max() > 2**36


def test_values_are_the_same_everywhere() -> None:
    """A checkpoint must lead to the same samples on all machines and in all versions. These were
    computed on x86-64 with NumPy 2."""
    shares = [Sampler(1797, 256, 16, 7).share(t, v).indices for t in range(20) for v in range(16)]
    found = hashlib.sha256(np.concatenate(shares).astype("<i8").tobytes()).hexdigest()
    assert found[:16] == "c22e0e2b47ee6755"
    assert sample_seed(7, 0, 0) != share_seed(7, 0, 0)


def test_seeds_are_distinct() -> None:
    numbers = list(itertools.product((0, 1, -1), (0, 1, 2), (0, 1, 2)))
    seeds = {f(*n) for f in (sample_seed, share_seed) for n in numbers}
    assert len(seeds) == 2 * len(numbers)
    assert all(0 <= seed < 2**64 for seed in seeds)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 4, 2, 0), "the data set has 0 samples"),
        ((9, 5, 2, 0), "^batch=5 must be a multiple of logical=2$"),
        ((9, 0, 2, 0), "^batch=0 must be at least 1$"),
        ((9, 4, 0, 0), "^logical=0 must be at least 1$"),
        ((9, 4, 2, 2**63), "it must fit 64 bits"),
    ],
)
def test_wrong_numbers(arguments: tuple[int, int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampler(*arguments)
