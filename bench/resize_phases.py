# SPDX-License-Identifier: Apache-2.0
"""The time that a worker spends in each part of a change of its group. Wraps the parts before the
workers are forked, so that each records when it began and ended."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddl_elastic.step import membership, step, transfer
from ddl_elastic.worker import change

# By name: the parts, in their order. The first one runs in parallel with the steps.
CREATION = "creation"
CLOSING, HELLO, COPY = "closing", "hello", "copy"
SUMS, VOTE = "sums", "vote"


@dataclass(frozen=True)
class Span:
    name: str
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


def install(folder: Callable[[], Path]) -> None:
    """Wrap the parts. Call this once, before any workers are forked. Each worker writes into a file
    of the folder that `folder` returns then."""

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            began = time.monotonic()
            try:
                return function(*arguments, **options)
            finally:
                with open(_file(folder(), os.getpid()), "a") as file:
                    file.write(f"{name} {began} {time.monotonic()}\n")

        return run

    member = membership.Membership
    member._create = timed(CREATION, member._create)  # type: ignore[method-assign]
    member.switch = timed(CLOSING, member.switch)  # type: ignore[method-assign]
    change._settle = timed(HELLO, change._settle)
    transfer.Sender.send = timed(COPY, transfer.Sender.send)  # type: ignore[method-assign]
    step.Step._reduce = timed(SUMS, step.Step._reduce)  # type: ignore[method-assign]
    step.Step._vote = timed(VOTE, step.Step._vote)  # type: ignore[method-assign]


def read(folder: Path, process: int) -> list[Span]:
    lines = [line.split() for line in _file(folder, process).read_text().splitlines()]
    return [Span(name, float(began), float(ended)) for name, began, ended in lines]


def _file(folder: Path, process: int) -> Path:
    return folder / f"{process}.spans"
