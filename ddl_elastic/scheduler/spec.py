"""What a job is submitted with, as it is in the store, and the policy's job that it becomes.

A specification is a mapping; all but `command` may be left out.

command      the program and its arguments, as in ["train.py", "--lr", "0.1"]
min, max     slots; min 0: the job may be paused for others
tier         higher ones are served first
weight       its share among its tenant's jobs
logical      its number of logical workers, where that is known before it tells
threads      of each worker's framework
memory       {"fixed": bytes of a worker, "gradient": bytes of one gradient}
deadline     seconds since 1970
environment  variables that are set for it
folder       where it runs
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddl_elastic.scheduler.jobs import Job
from ddl_elastic.scheduler.model import Memory, Report, StepModel, model_fit
from ddl_elastic.scheduler.store import Record

MOST = 4096  # logical workers, and so slots
_PYTHON = ("python", "python3")


@dataclass(frozen=True)
class Spec:
    """See above."""

    command: tuple[str, ...]
    least: int = 1
    most: int = MOST
    tier: int = 0
    weight: float = 1.0
    logical: int = 0  # 0: not known
    threads: int = 1
    memory: Memory | None = None
    deadline: float = math.inf
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""


@dataclass(frozen=True)
class Known:
    """What a job has told of itself while it ran."""

    logical: int = 0
    reports: Sequence[Report] = ()
    steps_left: float = math.inf
    cost: float = 0.5


def spec_read(spec: Mapping[str, Any]) -> Spec:
    """Raises ValueError."""
    command = tuple(map(str, spec.get("command") or ()))
    if command and command[0].rsplit("/", 1)[-1] in _PYTHON:
        command = command[1:]
    if not command:
        raise ValueError("there is no program in its command")
    memory = spec.get("memory")
    found = Spec(
        command,
        least=int(_given(spec, "min", 1)),
        most=int(_given(spec, "max", MOST)),
        tier=int(_given(spec, "tier", 0)),
        weight=float(_given(spec, "weight", 1.0)),
        logical=int(_given(spec, "logical", 0)),
        threads=int(_given(spec, "threads", 1)),
        memory=Memory(int(memory["fixed"]), int(memory["gradient"])) if memory else None,
        deadline=float(_given(spec, "deadline", math.inf)),
        environment={str(k): str(v) for k, v in (spec.get("environment") or {}).items()},
        folder=str(spec.get("folder") or ""),
    )
    if not 0 <= found.least <= found.most or found.most < 1:
        raise ValueError(f"it asks for {found.least} to {found.most} slots")
    return found


def _given(spec: Mapping[str, Any], name: str, default: float) -> Any:
    value = spec.get(name)
    return default if value is None else value


def job_of(record: Record, spec: Spec, known: Known) -> Job:
    """As the policy sees it. While the number of logical workers is not known, any size is legal
    that the job may have."""
    logical = known.logical or spec.logical or max(1, min(spec.most, MOST))
    model = model_fit(logical, known.reports) if known.reports else StepModel(logical)
    return Job(
        str(record.id),
        record.tenant,
        record.arrival,
        model,
        least=spec.least,
        most=spec.most,
        tier=spec.tier,
        weight=spec.weight,
        memory=spec.memory,
        used=record.used,
        waited=record.waited,
        changed=-math.inf if record.changed is None else record.changed,
        cost=known.cost,
        steps_left=known.steps_left,
        deadline=spec.deadline,
    )
