# SPDX-License-Identifier: Apache-2.0
"""The reading of samples, either when they are needed or in advance by loader processes.

The samples of a share are a function of the step and the logical worker, and each is read with
generators seeded for it. So any process can read any share, and the bits are the same.
"""

from __future__ import annotations

import socket
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from ddl_elastic.frameworks.protocol import Framework, Key
from ddl_elastic.shares.sampler import Sampler, SampleShare, sample_seed

Collate = Callable[[Sequence[Any]], Any]  # makes a batch from samples


@runtime_checkable
class Dataset(Protocol):
    """A data set with numbered samples, such as a list or a map-style data set of PyTorch."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@runtime_checkable
class SampleStream(Protocol):
    """An endless sequence of samples. After `seek(position)`, `next` returns the sample at this
    position, and then the following samples."""

    def seek(self, position: int, /) -> Any: ...

    def __next__(self) -> Any: ...


class ShareSource(Protocol):
    """A source of the samples of each share, such as ddl_elastic.shares.sampler.Sampler."""

    def share(self, step: int, worker: int) -> SampleShare: ...


class LoadingError(RuntimeError):
    """Error: a sample cannot be read, or a loader process has exited."""


def count_samples(data: Any) -> int | None:
    """Return the length of a data set, or None for a stream. Raises TypeError for other objects."""
    if isinstance(data, SampleStream):
        return None
    if isinstance(data, Dataset):
        return len(data)
    kind = f"{type(data).__module__}.{type(data).__qualname__}"
    if hasattr(data, "dataset"):
        raise TypeError(
            f"data is a {kind}, which chooses the samples of a batch itself; an elastic job"
            " chooses them, so that batches do not depend on the number of processes. Pass"
            " data.dataset instead, and its options to the job: batch (of all processes"
            " together), loader_workers, collate"
        )
    raise TypeError(
        f"data is a {kind}; a data set has __len__ and __getitem__, and a stream has"
        " seek(position) and __next__"
    )


def count_steps(
    sampler: Sampler, passes: int | None, steps: int | None, what: str = "steps"
) -> int:
    """Return the number of steps of a job, from passes (default: 1) or steps. Raises ValueError.

    what  the name of the argument `steps` in messages
    """
    if passes is not None and steps is not None:
        raise ValueError(f"passes is {passes} and {what} is {steps}; give one of them")
    if steps is None and sampler.samples is None:
        raise ValueError(f"data is a stream, which has no passes: give {what}=")
    for name, number in (("passes", passes), (what, steps)):
        if number is not None and number < 0:
            raise ValueError(f"{name} is {number}; must be at least 0")
    return sampler.steps(1 if passes is None else passes) if steps is None else steps


@dataclass(frozen=True)
class ReadingFailure:
    """The reply of a loader process that could not read a batch."""

    text: str
    trace: str


class Trace(Exception):
    """A traceback from a loader process. It is the cause of the exception in this process."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Reader:
    """The reader of shares. It can be sent to another process if `data` and `collate` can.

    data      a Dataset or a SampleStream
    seed      the job's seed
    set_seed  seeds all generators
    """

    def __init__(
        self,
        data: Any,
        shares: ShareSource,
        seed: int,
        set_seed: Callable[[int], None],
        collate: Collate,
    ) -> None:
        self._data, self._shares = data, shares
        self._stream = data if isinstance(data, SampleStream) else None
        self._seed, self._set_seed, self._collate = seed, set_seed, collate
        self._position = -1  # of the stream; -1 if unknown

    def read(self, key: Key) -> Any:
        """Return the batch of a share. Raises LoadingError."""
        share = self._shares.share(*key)
        samples = []
        for in_pass, index in zip(share.passes.tolist(), share.indices.tolist(), strict=True):
            self._set_seed(sample_seed(self._seed, in_pass, index))
            try:
                samples.append(self._read_sample(index))
            except Exception as error:
                raise LoadingError(
                    f"sample {index} of pass {in_pass} cannot be read: {describe(error)}"
                ) from error
        try:
            return self._collate(samples)
        except Exception as error:
            raise LoadingError(
                f"the samples {share.indices.tolist()} do not make a batch: {describe(error)}"
            ) from error

    def _read_sample(self, index: int) -> Any:
        if self._stream is None:
            return self._data[index]
        if self._position != index:
            self._stream.seek(index)
        self._position = -1
        sample = next(self._stream)
        self._position = index + 1
        return sample

    def __getitem__(self, key: Key) -> Any:
        """Return the batch of a share, or a ReadingFailure. Loader processes call this."""
        try:
            return self.read(key)
        except LoadingError as error:
            cause = error.__cause__ or error
            lines = traceback.format_exception(type(cause), cause, cause.__traceback__)
            return ReadingFailure(str(error), "".join(lines))


def read_example(
    data: Any,
    batch: int,
    logical: int,
    seed: int,
    set_seed: Callable[[int], None],
    collate: Collate,
) -> Any:
    """Return the batch of the first share, which has the shapes of all batches."""
    sampler = Sampler(count_samples(data), batch, logical, seed)
    return Reader(data, sampler, seed, set_seed, collate).read((0, 0))


def describe(error: Exception) -> str:
    if isinstance(error, StopIteration):
        return "the stream has ended"
    return f"{type(error).__name__}: {error}"


class Loader:
    """The batches of the shares that one rank computes.

    owned      returns the logical workers whose shares this rank computes in a step. The result
               may change until the step
    steps      the steps to read
    processes  number of processes that read ahead; 0 means that this process reads each batch when
               it is needed. A thread cannot read ahead, because samples use global generators
    member     this rank's number in the job, for messages
    """

    def __init__(
        self,
        framework: Framework,
        reader: Reader,
        owned: Callable[[int], Iterable[int]],
        steps: range,
        processes: int,
        member: int,
    ) -> None:
        if processes < 0:
            raise ValueError(f"loader_workers is {processes}; must be at least 0")
        self._framework, self._reader, self._processes = framework, reader, processes
        self._owned, self._steps = owned, steps
        self._name = f"rank {member} on {socket.gethostname()}"
        self._step = steps.start
        self._asked: set[Key] = set()  # shares requested in this step and later ones
        self._under_way: deque[Key] = deque()
        self._arrived: dict[Key, Any] = {}
        self._expected = self._expect(self._step)
        self._batches: Iterator[Any] | None = None

    def take(self, step: int, worker: int) -> Any:
        """Return the batch of a share. This process reads it itself if it was not expected, for
        example because another rank has died. Raises LoadingError."""
        if self._processes and self._batches is None:
            self._batches = self._framework.prefetch(self._reader, self._keys(), self._processes)
        if step > self._step:
            self._step = step
            self._asked = {key for key in self._asked if key[0] >= step}
            self._arrived = {key: self._arrived[key] for key in self._arrived if key[0] >= step}
        key = step, worker
        while key in self._under_way:
            self._receive(key)
        if key in self._arrived:
            batch = self._arrived.pop(key)
            if isinstance(batch, ReadingFailure):
                raise LoadingError(f"{self._name}: {batch.text}") from Trace(batch.trace)
            return batch
        self._asked.add(key)
        self._expected = self._expect(step)
        return self.read(step, worker)

    def read(self, step: int, worker: int) -> Any:
        """Read the batch of a share of any step in this process. Raises LoadingError."""
        try:
            with self._framework.reading():
                return self._reader.read((step, worker))
        except LoadingError as error:
            raise LoadingError(f"{self._name}: {error}") from error.__cause__

    def seek(self, step: int) -> None:
        """Set the first step. Must be called before `take`."""
        self._step, self._expected = step, self._expect(step)

    def close(self) -> None:
        """Stop the loader processes."""
        self._batches = None

    def _keys(self) -> Iterator[Key]:
        """Yield the next shares to load. A loader process takes one when it has room."""
        while key := next(self._expected, None):
            self._asked.add(key)
            self._under_way.append(key)
            yield key

    def _expect(self, first: int) -> Iterator[Key]:
        """Yield this rank's shares from step `first` on that have not been requested."""
        for step in range(first, self._steps.stop):
            for worker in sorted(self._owned(step)):
                if (step, worker) not in self._asked:
                    yield step, worker

    def _receive(self, wanted: Key) -> None:
        """Receive the next batch from the loader processes. Drop it if this rank does not compute
        its share any more."""
        assert self._batches is not None
        try:
            batch = next(self._batches)
        except Exception as error:
            raise LoadingError(f"{self._name}: loading has failed: {describe(error)}") from error
        key = self._under_way.popleft()
        if key == wanted or (key[0] >= self._step and key[1] in self._owned(key[0])):
            self._arrived[key] = batch
