# SPDX-License-Identifier: Apache-2.0
"""The policy's view of a job: its specification, and the measurements that it has reported."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ddl_scheduler.base.requests import JobSpec
from ddl_scheduler.base.store import JobRecord
from ddl_scheduler.planning.jobs import PolicyJob
from ddl_scheduler.planning.model import MemoryModel, StepModel, StepTiming, model_fit


@dataclass(frozen=True)
class JobStats:
    """The measurements that a job has reported."""

    logical: int = 0
    reports: Sequence[StepTiming] = ()
    steps_left: float = math.inf


def job_of(record: JobRecord, spec: JobSpec, known: JobStats) -> PolicyJob:
    """Return the job for the policy. While the number of logical workers is unknown, every size
    between the job's limits is legal."""
    logical = known.logical or spec.logical or spec.most
    model = model_fit(logical, known.reports) if known.reports else StepModel(logical)
    return PolicyJob(
        str(record.id),
        record.tenant,
        record.arrival,
        model,
        least=spec.least,
        most=spec.most,
        tier=spec.tier,
        weight=spec.weight,
        memory=MemoryModel(**spec.memory) if spec.memory else None,
        used=record.used,
        waited=record.waited,
        changed=-math.inf if record.changed is None else record.changed,
        steps_left=known.steps_left,
        deadline=math.inf if spec.deadline is None else spec.deadline,
    )
