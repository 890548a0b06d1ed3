# SPDX-License-Identifier: Apache-2.0
"""Samples that loader processes read ahead, streams, and samples that cannot be read."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import popen

from ddl_elastic.frameworks.protocol import Key
from ddl_elastic.shares.loading import Loader, LoadingError, Reader, count_samples, count_steps
from ddl_elastic.shares.sampler import Sampler

PROGRAM = Path(__file__).parent / "programs" / "reading.py"
LIMIT = 120  # seconds, on a busy machine


class Ahead:
    """Stands for a framework: reads up to `depth` batches ahead, and records what it reads."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.ahead: list[Key] = []  # the batches that were read ahead, in order
        self.seeds: list[int] = []

    def seed(self, seed: int) -> None:
        self.seeds.append(seed)

    def reading(self) -> Any:
        return nullcontext()

    def prefetch(self, batches: Any, keys: Iterable[Key], _processes: int) -> Iterator[Any]:
        asked, waiting = iter(keys), []

        def ask() -> None:
            key = next(asked, None)
            if key is not None:
                self.ahead.append(key)
                waiting.append(batches[key])

        for _ in range(self.depth):
            ask()

        def give() -> Iterator[Any]:
            while waiting:
                batch = waiting.pop(0)
                ask()
                yield batch

        return give()


def loader_of(
    owned: Callable[[int], Iterable[int]], depth: int, data: Any = range(64), steps: int = 8
) -> tuple[Ahead, Loader]:
    framework = Ahead(depth)
    reader = Reader(data, Sampler(len(data), 8, 4, 1), 1, framework.seed, list)
    return framework, Loader(framework, reader, owned, range(steps), 2, 0)  # type: ignore[arg-type]


def expected(step: int, worker: int) -> list[int]:
    return Sampler(64, 8, 4, 1).share(step, worker).indices.tolist()


def test_shares_are_read_ahead_over_the_ends_of_steps() -> None:
    framework, loader = loader_of(lambda _: [1, 2], depth=3)
    for step in range(8):
        for worker in (1, 2):
            assert loader.take(step, worker) == expected(step, worker)
            last = 2 * step + worker - 1  # of all shares
            assert framework.ahead == [(n // 2, 1 + n % 2) for n in range(min(last + 4, 16))]


def test_a_changed_map() -> None:
    """In step 2 this rank adopts worker 0, and from step 3 on it has workers 0 and 1."""
    owned = [1, 2]
    framework, loader = loader_of(lambda _: owned, depth=5)
    for step in range(3):
        for worker in (1, 2):
            assert loader.take(step, worker) == expected(step, worker)
    owned[:] = [0, 1]
    assert loader.take(2, 0) == expected(2, 0)
    assert (2, 0) not in framework.ahead
    for step in range(3, 8):
        for worker in (0, 1):
            assert loader.take(step, worker) == expected(step, worker)
    assert len(set(framework.ahead)) == len(framework.ahead)
    assert {key for key in framework.ahead if key[1] == 2 and key[0] > 5} == set()
    assert {(5, 0), (6, 0), (7, 0), (7, 1)} <= set(framework.ahead)


def test_what_nobody_needs_any_more_may_be_unreadable() -> None:
    class Holes(list[int]):
        def __getitem__(self, index: Any) -> Any:
            if index in expected(1, 2):
                raise OSError(f"no sample {index}")
            return super().__getitem__(index)

    owned = [1, 2]
    _, loader = loader_of(lambda _: owned, depth=4, data=Holes(range(64)))
    loader.take(0, 1)
    owned[:] = [1]
    for step in range(1, 8):
        assert loader.take(step, 1) == expected(step, 1)
    number = expected(1, 2)[0]
    _, loader = loader_of(lambda _: [1, 2], depth=4, data=Holes(range(64)))
    loader.take(1, 1)
    with pytest.raises(LoadingError) as found:
        loader.take(1, 2)
    host = os.uname().nodename
    assert str(found.value) == (
        f"rank 0 on {host}: sample {number} of pass 0 cannot be read: OSError: no sample {number}"
    )
    assert "in __getitem__" in str(found.value.__cause__)


class Counting:
    """A stream with its own positions, up to an end."""

    def __init__(self, end: int = 1000) -> None:
        self.position, self.end, self.seeks = 0, end, 0

    def seek(self, position: int) -> None:
        self.position = position
        self.seeks += 1

    def __next__(self) -> int:
        if self.position == self.end:
            raise StopIteration
        self.position += 1
        return self.position - 1


def test_a_stream_is_read_on_without_seeking() -> None:
    stream = Counting(end=70)
    reader = Reader(stream, Sampler(None, 12, 4, 1), 1, lambda _: None, list)
    read = [each for step in (2, 3) for worker in (1, 2, 3) for each in reader.read((step, worker))]
    assert read == [*range(27, 36), *range(39, 48)]
    assert stream.seeks == 2
    with pytest.raises(LoadingError, match="sample 70 of pass 0 cannot be read: the stream has en"):
        reader.read((5, 3))


def test_a_batch_that_cannot_be_made() -> None:
    reader = Reader(range(9), Sampler(9, 4, 2, 1), 1, lambda _: None, lambda _: [] + 1)  # type: ignore
    with pytest.raises(LoadingError, match=r"the samples \[\d, \d\] do not make a batch: TypeErr"):
        reader.read((0, 0))


@pytest.mark.parametrize(
    ("samples", "passes", "steps", "expected"),
    [
        (10, None, None, 3),
        (10, 4, None, 10),
        (10, None, 7, 7),
        (None, None, 7, 7),
        (10, 0, None, 0),
    ],
)
def test_how_many_steps(samples: Any, passes: Any, steps: Any, expected: int) -> None:
    assert count_steps(Sampler(samples, 4, 2, 0), passes, steps) == expected


@pytest.mark.parametrize(
    ("samples", "passes", "steps", "message"),
    [
        (10, 1, 1, "passes is 1 and steps is 1; give one of them"),
        (None, 2, None, "data is a stream, which has no passes: give steps="),
        (10, -1, None, "passes is -1; must be at least 0"),
        (None, None, -2, "steps is -2"),
    ],
)
def test_wrong_numbers_of_steps(samples: Any, passes: Any, steps: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        count_steps(Sampler(samples, 4, 2, 0), passes, steps)


def test_what_is_no_data_set() -> None:
    torch = pytest.importorskip("torch")
    assert count_samples([1, 2]) == 2
    assert count_samples(np.zeros((3, 4))) == 3
    assert count_samples(Counting()) is None
    with pytest.raises(TypeError, match=r"data is a .*DataLoader, which chooses .* data\.dataset"):
        count_samples(torch.utils.data.DataLoader([1, 2]))
    with pytest.raises(TypeError, match="data is a builtins.int; a data set has __len__"):
        count_samples(3)


@pytest.mark.parametrize("links", ["shm", "tcp"])
def test_loader_processes_do_not_change_the_result(members: Any, links: str) -> None:
    kills = [{"member": 1, "step": 5, "phase": "compute"}]
    members.check(members=3, loader_workers=1, kills=kills, links=[links])
    members.check(members=1, loader_workers=2)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("owners", ["random", "changing"])
def test_any_map(members: Any, owners: str, workers: int) -> None:
    kills = [{"member": 0, "step": 4, "phase": "reduce"}]
    members.check(members=3, loader_workers=workers, owners=owners, kills=kills)


@pytest.mark.parametrize("workers", [0, 1])
def test_streams(members: Any, workers: int) -> None:
    kills = [{"member": 2, "step": 4, "phase": "compute"}]
    more = {"loader_workers": workers, "owners": "changing"}
    members.check(members=3, steps=9, kills=kills, **more)


class Program:
    """A member alone, in programs/reading.py, which prints its progress."""

    def __init__(self, folder: Path, what: str, loader_workers: int, thread: str = "") -> None:
        self.process = popen(
            [sys.executable, PROGRAM, what, str(loader_workers), thread],
            cwd=folder,
            stdin=subprocess.PIPE,
        )

    def read(self) -> Any:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, self.process.communicate(timeout=LIMIT)[1]
        return json.loads(line)

    def loaders(self) -> list[int]:
        return [os.pidfd_open(pid) for pid in self.read()]

    def end(self, line: str | None = None) -> str:
        return self.process.communicate(line, timeout=LIMIT)[1]


def wait_for_ends(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        assert select.select([descriptor], [], [], LIMIT)[0], f"still alive after {LIMIT} s"
        os.close(descriptor)


def test_loader_processes_end_with_their_worker(tmp_path: Path) -> None:
    program = Program(tmp_path, "block", 2)
    loaders = program.loaders()
    assert len(loaders) == 2
    program.process.kill()
    wait_for_ends(loaders)
    program.end()


@pytest.mark.slow
def test_loader_processes_end_with_the_steps(tmp_path: Path) -> None:
    program = Program(tmp_path, "all", 2)
    loaders = program.loaders()
    assert program.read() == "done"
    wait_for_ends(loaders)
    program.end()
    assert program.process.returncode == 0


@pytest.mark.parametrize("thread", ["main", pytest.param("other", marks=pytest.mark.slow)])
def test_a_loader_process_is_killed(tmp_path: Path, thread: str) -> None:
    program = Program(tmp_path, "block", 1, thread)
    pid = program.read()[0]
    loader = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    wait_for_ends([loader])
    error = program.end("\n")
    assert program.process.returncode == 1
    assert f"LoadingError: rank 0 on {os.uname().nodename}: loading has failed: " in error
    assert str(pid) in error


@pytest.mark.slow
def test_a_sample_fails_in_a_loader_process(tmp_path: Path) -> None:
    program = Program(tmp_path, "fail", 1)
    program.read()
    error = program.end()
    last = error.strip().splitlines()[-1]
    host = os.uname().nodename
    assert last.endswith(
        f"LoadingError: rank 0 on {host}: sample 5 of pass 0 cannot be read: OSError: 5 is missing"
    )
    assert 'raise OSError(f"{index} is missing")' in error
