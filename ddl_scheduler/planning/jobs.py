# SPDX-License-Identifier: Apache-2.0
"""What the policy reads and what it answers: slots, tenants, jobs, the plan. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ddl_scheduler.planning.model import MemoryModel, StepModel


@dataclass(frozen=True)
class PolicySlot:
    """One place for a worker. Only usable ones are planned with."""

    name: str
    host: str
    kind: str = ""
    memory: int = 0  # bytes for a worker; 0: not known


@dataclass(frozen=True)
class Tenant:
    """Whose jobs share a quota."""

    name: str
    cap: int | None = None  # slots that its jobs have at most
    guarantee: int = 0  # slots that its jobs get before those of others, if they want them
    weight: float = 1.0  # its share of what is contended


@dataclass(frozen=True)
class PolicyJob:
    """A job that waits or runs."""

    name: str
    tenant: str
    arrival: float
    model: StepModel
    least: int = 1  # slots; 0: may be paused for others
    most: int = 4096
    tier: int = 0  # higher ones are served first
    weight: float = 1.0
    kind: str = ""  # of the slots it needs
    memory: MemoryModel | None = None
    used: float = 0.0  # slot-seconds that it has had
    waited: float = 0.0  # seconds without a slot
    changed: float = -math.inf  # when its number of slots last changed
    cost: float = 0.5  # seconds that a change costs it, as measured
    steps_left: float = math.inf
    deadline: float = math.inf


@dataclass(frozen=True)
class Settings:
    """Numbers of the policy."""

    worth: float = 0.5  # speed-up per slot, below which slots go to others first
    least_worth: float = 0.02  # below which they are left idle
    young_weight: float = 4.0  # of a job that has had little, as most of them are short
    young: float = 1800.0  # slot-seconds
    horizon: float = 60.0  # seconds in which a change has to pay
    rest: float = 5.0  # seconds after a change in which a job does not grow
    ageing: float = math.inf  # seconds of waiting that raise a job by a tier
    margin: float = 0.05  # of the time to a deadline, as predictions err


Map = Mapping[str, tuple[str, ...]]  # the slots of each job that has some


@dataclass(frozen=True)
class Schedule:
    """Who gets what, and why others do not."""

    slots: Map = field(default_factory=dict)
    waiting: Mapping[str, str] = field(default_factory=dict)  # by job without slots: its reason
    deadlines: Mapping[str, str] = field(default_factory=dict)  # by job in danger of missing it
    again: float = math.inf  # when to plan again if nothing happens until then

    @property
    def sizes(self) -> dict[str, int]:
        """The number of slots of each job that has some."""
        return {name: len(slots) for name, slots in self.slots.items()}
