# SPDX-License-Identifier: Apache-2.0
"""Workloads from files: those of AdaptDL's simulator, and the Philly trace in AdaptDL's format.

AdaptDL's workloads are tables with the columns name, time, application, num_replicas and
batch_size. The Philly trace has the columns timestamp, duration and num_gpus. Neither contains how
a job's speed depends on its ranks, so this is drawn at random as for generated workloads.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from ddl_scheduler.simulation.workloads import (
    SPAN,
    Submission,
    shares_choose,
    submission_make,
    workload_make,
)

GENERATED = "generated"
# Slot-hours of AdaptDL's applications. Its files have no durations. These lie within the classes
# that its authors assigned to the applications.
_APPLICATIONS = {
    "ncf": 0.1,
    "cifar10": 0.5,
    "deepspeech2": 3.0,
    "bert": 3.0,
    "yolov3": 30.0,
    "imagenet": 150.0,
}
_WINDOW = 2 * 3600  # AdaptDL samples the Philly jobs from two o'clock at night on
_SHORTEST, _LARGEST = 60.0, 1000 * 3600.0  # seconds; slot-seconds

Row = Mapping[str, str]
Where = Callable[[str], str]


class WorkloadError(Exception):
    """A workload that cannot be read."""


def workload_read(source: str, seed: int, count: int, load: float) -> list[Submission]:
    """Return the jobs of a file, or generated jobs, by arrival. Raises WorkloadError.

    count  the number of jobs to generate, or to sample from a longer trace
    load   multiplies the work of each job
    """
    if source == GENERATED:
        return workload_make(seed, count, load)
    path = Path(source)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            columns = set(reader.fieldnames or ())
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise WorkloadError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if {"time", "application", "num_replicas"} <= columns:
        jobs = _adaptdl(path, rows, seed, load)
    elif {"timestamp", "duration", "num_gpus"} <= columns:
        jobs = _philly(path, rows, seed, count, load)
    else:
        raise WorkloadError(
            f"{path}: unknown workload format. An AdaptDL trace has the columns time, application"
            " and num_replicas; a Philly trace has timestamp, duration and num_gpus. This file has"
            f" {', '.join(sorted(columns)) or 'no columns'}"
        )
    if not jobs:
        raise WorkloadError(f"{path}: the file contains no job")
    return sorted(jobs, key=lambda job: job.arrival)


def _adaptdl(
    path: Path, rows: Sequence[tuple[int, Row]], seed: int, load: float
) -> list[Submission]:
    source, jobs = random.Random(seed), []
    for line, row in rows:
        hours = _APPLICATIONS.get(row["application"] or "")
        if hours is None:
            raise WorkloadError(
                f"{path}, line {line}: the application is {row['application']!r}; must be one of"
                f" {', '.join(_APPLICATIONS)}"
            )
        work, name = hours * 3600 * load, row.get("name") or f"job-{line}"
        arrival = _number(path, line, row, "time", 0)
        asked = int(_number(path, line, row, "num_replicas", 1))
        jobs.append(submission_make(name, arrival, work, shares_choose(work, asked), asked, source))
    return jobs


def _philly(
    path: Path, rows: Sequence[tuple[int, Row]], seed: int, count: int, load: float
) -> list[Submission]:
    """Sample jobs that arrived in the same eight hours of any day, as if all had arrived on one
    day."""
    source, found = random.Random(seed), []
    for line, row in rows:
        try:
            came = datetime.fromisoformat(row["timestamp"] or "")
        except ValueError:
            raise WorkloadError(
                f"{path}, line {line}: the timestamp is {row['timestamp']!r}; write it as"
                " 2017-10-22 07:24:52"
            ) from None
        second = (came.hour * 3600 + came.minute * 60 + came.second - _WINDOW) % 86400
        duration = _number(path, line, row, "duration", 0)
        asked = int(_number(path, line, row, "num_gpus", 0))
        if second < SPAN and duration >= _SHORTEST and 0 < duration * asked < _LARGEST:
            found.append((second, line, duration, asked))
    jobs = []
    for second, line, duration, asked in source.sample(found, min(count, len(found))):
        work = duration * asked * load
        shares = shares_choose(work, asked)
        jobs.append(submission_make(f"line-{line}", second, work, shares, asked, source))
    return jobs


def _number(path: Path, line: int, row: Row, column: str, least: float) -> float:
    try:
        number = float(row[column] or "")
    except ValueError:
        number = -1.0
    if not least <= number < float("inf"):
        raise WorkloadError(
            f"{path}, line {line}: {column} is {row[column]!r}; must be a number >= {least}"
        )
    return number
