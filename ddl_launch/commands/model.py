# SPDX-License-Identifier: Apache-2.0
"""The description of a training step: when gradients are ready, and how their reduction
overlaps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ddl_launch.base.quantities import parse_bytes, parse_seconds
from ddl_launch.commands.description import Table, positive, read, share, text


@dataclass(frozen=True)
class Bucket:
    """A group of gradients that are reduced together."""

    bytes: int
    ready: float  # seconds from the step's start


@dataclass(frozen=True)
class Published:
    """A published efficiency, for comparison."""

    ranks: int
    efficiency: float
    source: str


@dataclass(frozen=True)
class Model:
    """The training step of one rank."""

    name: str
    images: int
    seconds: float  # forward and backward
    buckets: tuple[Bucket, ...]
    published: tuple[Published, ...]

    def step(self, reduce: Callable[[int], float]) -> float:
        """Return the seconds of a step if each bucket is reduced as soon as it is ready, one after
        the other. `reduce` returns the seconds for a number of bytes. The reductions do not slow
        the computation down."""
        end = 0.0
        for bucket in self.buckets:
            end = max(end, bucket.ready) + reduce(bucket.bytes)
        return max(end, self.seconds)

    def step_without_overlap(self, reduce: Callable[[int], float]) -> float:
        """Return the seconds of a step if all buckets are reduced after the backward pass."""
        return self.seconds + sum(reduce(bucket.bytes) for bucket in self.buckets)


def read_model(path: Path) -> Model:
    """Read a model's description. Raises DescriptionError."""
    file = read(path)
    name = file.get("name", text, path.stem)
    images = file.get("images", positive)
    now = file.get("forward", parse_seconds)
    limit = file.get("bucket", parse_bytes)
    buckets: list[Bucket] = []
    for table in file.tables("gradient"):
        nbytes = table.get("bytes", parse_bytes)
        table.get("name", text, "-")
        now += table.get("backward", parse_seconds)
        table.end()
        if buckets and buckets[-1].bytes + nbytes <= limit:
            nbytes += buckets.pop().bytes
        buckets.append(Bucket(nbytes, now))
    if not buckets:
        raise file.error("gradient", "is missing: write [[gradient]] for each, in backward order")
    published = tuple(_published(table) for table in file.tables("published"))
    file.end()
    return Model(name, images, now, tuple(buckets), published)


def _published(table: Table) -> Published:
    published = Published(
        table.get("ranks", positive), table.get("efficiency", share), table.get("source", text)
    )
    table.end()
    return published
