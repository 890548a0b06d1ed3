# SPDX-License-Identifier: Apache-2.0
"""The samples of each logical worker in each step, and the seeds of its random numbers. Pure.

The batches of a job run through its passes without a gap: position g = step * batch + i belongs to
pass g // samples, and a pass is a permutation of all samples. So a pass uses each sample exactly
once, without repeating or dropping samples to fill a batch, and a checkpoint needs only the step. A
permutation is computed element by element, so its memory does not grow with the data. A stream has
no passes: position g is its sample g.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

_ROUNDS = 8  # each uses 8 bytes of a 64-byte digest
_BLOCK = 512  # number of samples that take about as long as one

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SampleShare:
    """The samples of one logical worker in one step, in order: sample indices[i] in passes[i]."""

    passes: Numbers
    indices: Numbers


@dataclass(frozen=True)
class Sampler:
    """The samples of every step of a job.

    samples     the number of samples in the data set; None for a stream
    batch       samples of a step, of all logical workers together: a multiple of `workers`
    workers     the number of logical workers
    seed        the job's seed, -2**63 to 2**63 - 1
    first_step  the step in which the first pass of the data set, or this part of a stream, begins
    first_pass  the number of that pass
    position    the position of a stream in the step `first_step`

    Raises ValueError for invalid numbers.
    """

    samples: int | None
    batch: int
    workers: int
    seed: int
    first_step: int = 0
    first_pass: int = 0
    position: int = 0

    def __post_init__(self) -> None:
        if self.samples is not None and self.samples < 1:
            raise ValueError(f"the data set has {self.samples} samples; at least 1 is needed")
        for name, number in (("batch", self.batch), ("logical", self.workers)):
            if number < 1:
                raise ValueError(f"{name}={number} must be at least 1")
        if self.batch % self.workers:
            raise ValueError(f"batch={self.batch} must be a multiple of logical={self.workers}")
        if not -(2**63) <= self.seed < 2**63:
            raise ValueError(f"seed is {self.seed}; it must fit 64 bits")

    def share(self, step: int, worker: int) -> SampleShare:
        """Return the samples that logical worker `worker` computes in `step`."""
        size = self.batch // self.workers
        first = (step - self.first_step) * self.batch + worker * size
        if self.samples is None:
            first += self.position
            return SampleShare(np.zeros(size, np.int64), np.arange(first, first + size))
        if size > _BLOCK:
            return SampleShare(*self._span(first, size))
        block, begin = divmod(first, _BLOCK)
        parts = [_block(self, block)]
        if begin + size > _BLOCK:
            parts.append(_block(self, block + 1))
        inside = slice(begin, begin + size)
        passes, indices = (np.concatenate(each)[inside] for each in zip(*parts, strict=True))
        return SampleShare(passes, indices)

    def _span(self, first: int, size: int) -> tuple[Numbers, Numbers]:
        """Return the passes and indices of `size` samples, from position `first` on."""
        assert self.samples is not None
        passes, positions = np.divmod(np.arange(first, first + size), self.samples)
        passes += self.first_pass
        indices = np.empty(size, np.int64)
        for number in np.unique(passes):
            inside = passes == number
            indices[inside] = permute(positions[inside], self.samples, self.seed, int(number))
        return passes, indices

    def steps(self, passes: int) -> int:
        """Return the number of steps that complete this many passes. Not for streams."""
        assert self.samples is not None
        return -(-passes * self.samples // self.batch)

    def passes(self, steps: int) -> int:
        """Return the number of passes that have begun after this many steps. A stream counts as
        one pass."""
        return 1 if self.samples is None else -(-steps * self.batch // self.samples)


@lru_cache(maxsize=4)
def _block(sampler: Sampler, number: int) -> tuple[Numbers, Numbers]:
    """Return the samples of many small shares at once, which takes no longer than for one share."""
    return sampler._span(number * _BLOCK, _BLOCK)


def sample_seed(seed: int, pass_number: int, index: int) -> int:
    """Return the 64-bit seed of a sample's random numbers in a pass, such as its augmentation."""
    return _words(b"sample", seed, pass_number, index)[0]


def share_seed(seed: int, step: int, worker: int) -> int:
    """Return the 64-bit seed of a share's random numbers in a step, such as dropout."""
    return _words(b"share", seed, step, worker)[0]


def evaluation_seed(seed: int, batch: int) -> int:
    """Return the 64-bit seed of the random numbers in the evaluation of a batch."""
    return _words(b"evaluation", seed, batch)[0]


def model_seed(seed: int) -> int:
    """Return the 64-bit seed of the random numbers in the initial model."""
    return _words(b"model", seed)[0]


def permute(positions: Numbers, samples: int, seed: int, pass_number: int) -> Numbers:
    """Return the samples at these positions of a pass, each from 0 to samples - 1.

    A Feistel network permutes 0 to 4**k - 1, the smallest such range that holds all samples. A
    value that is too large passes through it again, so the result is a permutation of the samples
    (cycle walking: Black and Rogaway, CT-RSA 2002).
    """
    keys = np.array(_words(b"pass", seed, pass_number), np.uint64)
    half = np.uint64(max(1, ((samples - 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << half) - np.uint64(1)
    values = positions.astype(np.uint64)
    outside = np.arange(len(values))
    while len(outside):
        left, right = values[outside] >> half, values[outside] & mask
        for key in keys:
            left, right = right, left ^ (_mix(right ^ key) & mask)
        values[outside] = left << half | right
        outside = outside[values[outside] >= samples]
    return values.astype(np.int64)


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Apply the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed


def _words(purpose: bytes, *numbers: int) -> tuple[int, ...]:
    """Return eight 64-bit numbers derived from these numbers by a hash."""
    data = struct.pack(f"<{len(numbers)}q", *numbers)
    digest = hashlib.blake2b(data, digest_size=8 * _ROUNDS, person=purpose).digest()
    return struct.unpack(f"<{_ROUNDS}Q", digest)
