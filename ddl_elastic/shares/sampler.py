# SPDX-License-Identifier: Apache-2.0
"""Which samples a logical worker computes in a step, and what seeds its randomness. Pure.

The batches of a job run through its passes without a gap: position g = step * batch + i belongs to
pass g // samples, and a pass is a permutation of all samples. So each sample is used exactly once
in a pass, none is repeated to fill a batch and none is dropped, and the step is all that there is
to save. A permutation is computed element by element, so its memory does not grow with the data.
Of a stream, which has no passes, position g is sample g.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

_ROUNDS = 8  # of a digest of 64 bytes each uses 8
_BLOCK = 512  # samples: about as many take as long as one

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SampleShare:
    """The samples of one logical worker in one step, in order: sample indices[i] in passes[i]."""

    passes: Numbers
    indices: Numbers


@dataclass(frozen=True)
class Sampler:
    """The samples of every step of a job.

    samples     in the data set; None: it is a stream
    batch       samples of a step, of all logical workers together: a multiple of `workers`
    workers     logical workers
    seed        of the job; -2**63 to 2**63 - 1
    first_step  the step in which the data set's first pass begins; a stream begins with step 0
    first_pass  that pass's number

    Raises ValueError for numbers that do not fit.
    """

    samples: int | None
    batch: int
    workers: int
    seed: int
    first_step: int = 0
    first_pass: int = 0

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
        """The samples that logical worker `worker` computes in `step`."""
        size = self.batch // self.workers
        if self.samples is None:
            first = step * self.batch + worker * size
            return SampleShare(np.zeros(size, np.int64), np.arange(first, first + size))
        first = (step - self.first_step) * self.batch + worker * size
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
        """The passes and indices of `size` samples, the first one the `first` of the data set."""
        assert self.samples is not None
        passes, positions = np.divmod(np.arange(first, first + size), self.samples)
        passes += self.first_pass
        indices = np.empty(size, np.int64)
        for number in np.unique(passes):
            inside = passes == number
            indices[inside] = permute(positions[inside], self.samples, self.seed, int(number))
        return passes, indices

    def steps(self, passes: int) -> int:
        """The number of steps after which so many passes are complete. Not of a stream."""
        assert self.samples is not None
        return -(-passes * self.samples // self.batch)

    def passes(self, steps: int) -> int:
        """The number of passes that so many steps begin. A stream is one pass."""
        return 1 if self.samples is None else -(-steps * self.batch // self.samples)


@lru_cache(maxsize=4)
def _block(sampler: Sampler, number: int) -> tuple[Numbers, Numbers]:
    """The samples of many small shares at once, which takes as long as those of one."""
    return sampler._span(number * _BLOCK, _BLOCK)


def sample_seed(seed: int, pass_number: int, index: int) -> int:
    """Seeds what is random about sample `index` in a pass, such as its augmentation. 64 bits."""
    return _words(b"sample", seed, pass_number, index)[0]


def share_seed(seed: int, step: int, worker: int) -> int:
    """Seeds what is random in a logical worker's share of a step, such as dropout. 64 bits."""
    return _words(b"share", seed, step, worker)[0]


def evaluation_seed(seed: int, batch: int) -> int:
    """Seeds what is random when a batch is evaluated. 64 bits."""
    return _words(b"evaluation", seed, batch)[0]


def model_seed(seed: int) -> int:
    """Seeds what is random in the initial model. 64 bits."""
    return _words(b"model", seed)[0]


def permute(positions: Numbers, samples: int, seed: int, pass_number: int) -> Numbers:
    """The samples at these positions of a pass, each 0 to samples - 1.

    A Feistel network permutes 0 to 4**k - 1, the smallest such range that holds all samples. What
    lands beyond `samples` passes through it again, which leaves a permutation of the samples
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
    """The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: npt.NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed


def _words(purpose: bytes, *numbers: int) -> tuple[int, ...]:
    """Eight numbers of 64 bits for these numbers, unrelated to those of other numbers."""
    data = struct.pack(f"<{len(numbers)}q", *numbers)
    digest = hashlib.blake2b(data, digest_size=8 * _ROUNDS, person=purpose).digest()
    return struct.unpack(f"<{_ROUNDS}Q", digest)
