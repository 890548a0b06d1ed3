# SPDX-License-Identifier: Apache-2.0
"""The records that the workers of one run have written; see ddl_elastic/hidden/recording.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class WorkerRecords:
    """The records of one worker.

    shares   lines of shares, by step and logical worker
    steps    lines of steps, by number
    hidden   the hidden state by name, before each share and after each step
    places   the description of each name of hidden state
    clocks   calls of the clock
    seeds    the states of the global generators, one for each call of `steps`
    """

    member: int
    shares: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    steps: dict[int, dict[str, Any]] = field(default_factory=dict)
    hidden: dict[tuple[int, ...], dict[str, str]] = field(default_factory=dict)
    places: dict[str, dict[str, str]] = field(default_factory=dict)
    clocks: list[dict[str, Any]] = field(default_factory=list)
    seeds: list[dict[str, str]] = field(default_factory=list)


@dataclass
class RunRecords:
    """The records of all workers of one run.

    name  the run's name in messages
    """

    name: str
    workers: list[WorkerRecords]

    @property
    def steps(self) -> int:
        """The number of the last step that any worker has recorded, plus one."""
        return max((step + 1 for each in self.workers for step in each.steps), default=0)


def read_run(name: str, folder: Path) -> RunRecords:
    """Return the records in a folder."""
    files = sorted(folder.glob("*.jsonl"), key=lambda file: int(file.stem))
    return RunRecords(name, [_read_worker(int(file.stem), _lines(file)) for file in files])


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:  # the worker was killed while writing
            return


def _read_worker(member: int, lines: Iterator[dict[str, Any]]) -> WorkerRecords:
    found, hidden = WorkerRecords(member), dict[str, str]()
    for line in lines:
        if "place" in line:
            found.places.setdefault(line["place"], line)
            continue
        if "seeds" in line:
            found.seeds.append(line["seeds"])
            continue
        if "clock" in line:
            found.clocks.append(line)
            continue
        hidden = {**hidden, **line.get("hidden", {})}
        if "share" in line:
            step, worker = line["share"]
            found.shares[step, worker] = line
            found.hidden[step, worker] = hidden
        else:
            found.steps[line["step"]] = line
            found.hidden[(line["step"],)] = hidden
    return found
