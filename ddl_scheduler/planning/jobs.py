# SPDX-License-Identifier: Apache-2.0
"""The policy's input and output: slots, tenants, jobs and the schedule. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ddl_scheduler.planning.model import MemoryModel, StepModel


@dataclass(frozen=True)
class PolicySlot:
    """A slot that can hold one worker. The policy gets only usable slots."""

    name: str
    host: str
    kind: str = ""
    memory: int = 0  # bytes for a worker; 0 means unknown


@dataclass(frozen=True)
class Tenant:
    """A group of users whose jobs share a quota."""

    name: str
    cap: int | None = None  # the most slots of its jobs
    guarantee: int = 0  # slots that its jobs get before other tenants' jobs
    weight: float = 1.0  # its share of contended slots


@dataclass(frozen=True)
class PolicyJob:
    """A waiting or running job."""

    name: str
    tenant: str
    arrival: float
    model: StepModel
    least: int = 1  # slots; 0 means that the job may be paused for others
    most: int = 4096
    tier: int = 0  # higher tiers get slots first
    weight: float = 1.0
    kind: str = ""  # the kind of slots that it needs
    memory: MemoryModel | None = None
    used: float = 0.0  # slot-seconds so far
    waited: float = 0.0  # seconds without a slot
    changed: float = -math.inf  # when its number of slots last changed
    cost: float = 0.5  # seconds that a change costs the job, as measured
    steps_left: float = math.inf
    deadline: float = math.inf


@dataclass(frozen=True)
class Settings:
    """The policy's parameters."""

    worth: float = 0.5  # speed-up per slot; slots that gain less go to other jobs first
    least_worth: float = 0.02  # slots that gain less stay idle
    young_weight: float = 4.0  # the weight of a young job, since most young jobs are short
    young: float = 1800.0  # slot-seconds up to which a job is young
    horizon: float = 60.0  # seconds within which a change must pay off
    rest: float = 5.0  # seconds after a change during which a job does not grow
    ageing: float = math.inf  # seconds of waiting that raise a job by a tier
    margin: float = 0.05  # reserved share of the time to a deadline, since predictions have errors


Map = Mapping[str, tuple[str, ...]]  # the slots of each job that has some


@dataclass(frozen=True)
class Schedule:
    """The slots of each job, and the reasons why other jobs have none."""

    slots: Map = field(default_factory=dict)
    waiting: Mapping[str, str] = field(default_factory=dict)  # by job without slots: the reason
    # By job that may miss its deadline: the warning.
    deadlines: Mapping[str, str] = field(default_factory=dict)
    again: float = math.inf  # when to plan again if no event comes first

    @property
    def sizes(self) -> dict[str, int]:
        """The number of slots of each job that has slots."""
        return {name: len(slots) for name, slots in self.slots.items()}
