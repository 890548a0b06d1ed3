# SPDX-License-Identifier: Apache-2.0
"""A simulation of many jobs over time, with the policy and the model of a real cluster.

Between two events each job runs at the speed of its slots. Events are arrivals, ends, and the times
at which the method wants to plan. A method that plans with models knows measurements only: after
each stretch a job reports the time of its step, with an error of a few percent.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ddl_scheduler.planning.jobs import Map, PolicySlot
from ddl_scheduler.planning.model import StepModel, StepTiming, model_fit
from ddl_scheduler.simulation.workloads import Submission

START = 5.0  # seconds until a new process takes part, as it imports and compiles
_ERROR = 0.03  # standard deviation of a report's relative error
_EVENTS = 1_000_000  # more than any method needs


@dataclass
class Running:
    """A job in the cluster, and its progress."""

    job: Submission
    left: float  # steps
    model: StepModel  # fitted to its reports so far
    slots: tuple[str, ...] = ()
    hosts: int = 1
    used: float = 0.0  # slot-seconds
    waited: float = 0.0
    changed: float = -math.inf
    begun: bool = False
    frozen: float = -math.inf  # it does nothing until this time
    slower: float = -math.inf  # until this time it has only the speed of `before`
    before: tuple[int, int] = (0, 1)  # ranks and hosts
    reports: dict[tuple[int, int], StepTiming] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The number of its slots."""
        return len(self.slots)


# A function of the jobs, the last plan and the time. Returns the slots of each job, and when to
# plan again.
Decide = Callable[[Sequence[Running], Map, float], tuple[Map, float]]


@dataclass(frozen=True)
class Method:
    """A scheduling method."""

    name: str
    decide: Decide
    cost: float  # seconds in which a changing job does nothing
    period: float = 0.0  # seconds between two plans; 0 means at each event
    restarts: bool = False  # whether a change stops the processes, which then read a checkpoint


@dataclass(frozen=True)
class Stretch:
    """A time span in which a job had a fixed number of slots."""

    name: str
    start: float
    end: float
    size: int


@dataclass(frozen=True)
class Outcome:
    """The result of simulating a workload with one method."""

    times: Mapping[str, float]  # by job: seconds from its arrival to its end
    makespan: float  # seconds from the first arrival to the last end
    busy: float  # share of the slots' time in which jobs had them
    changes: int  # how often running jobs changed their slots
    stretches: Sequence[Stretch]

    @property
    def mean(self) -> float:
        """The mean number of seconds from a job's arrival to its end."""
        return sum(self.times.values()) / len(self.times)

    def percentile(self, share: float) -> float:
        """Return the time within which this share of the jobs was completed."""
        times = sorted(self.times.values())
        return times[min(len(times) - 1, int(share * len(times)))]


def simulate(jobs: Sequence[Submission], slots: Sequence[PolicySlot], method: Method) -> Outcome:
    """Run the jobs, ordered by arrival, to their end. Raises ValueError if a job cannot end."""
    return _Simulation(jobs, slots, method).run()


class _Simulation:
    def __init__(
        self, jobs: Sequence[Submission], slots: Sequence[PolicySlot], method: Method
    ) -> None:
        self._todo = list(jobs)[::-1]
        self._slots, self._method = slots, method
        self._host = {slot.name: slot.host for slot in slots}
        self._active: list[Running] = []
        self._now = jobs[0].arrival if jobs else 0.0
        self._first = self._now
        self._again = math.inf  # the latest time of the next plan
        self._due = False  # whether a plan is made at once
        self._times: dict[str, float] = {}
        self._stretches: list[Stretch] = []
        self._busy, self._changes = 0.0, 0

    def run(self) -> Outcome:
        for _ in range(_EVENTS):
            self._arrive()
            if not self._active and not self._todo:
                break
            if self._due or self._now >= self._again:
                self._plan()
            self._advance(self._next())
        else:
            names = ", ".join(running.job.name for running in self._active[:3])
            raise ValueError(f"{self._method.name}: jobs {names} never finish")
        span = self._now - self._first
        busy = self._busy / (span * len(self._slots)) if span else 0.0
        return Outcome(self._times, span, busy, self._changes, self._stretches)

    def _arrive(self) -> None:
        while self._todo and self._todo[-1].arrival <= self._now:
            job = self._todo.pop()
            self._active.append(Running(job, job.steps, StepModel(job.model.shares)))
            self._event()

    def _event(self) -> None:
        """Schedule a plan after an event."""
        period = self._method.period
        if not period:
            self._due = True
        elif self._again == math.inf:  # the first event
            self._again = self._now

    def _plan(self) -> None:
        last = {running.job.name: running.slots for running in self._active if running.slots}
        found, again = self._method.decide(self._active, last, self._now)
        self._due = False
        self._again = self._now + (self._method.period or max(again - self._now, 1e-3))
        for running in self._active:
            slots = found.get(running.job.name, ())
            if slots != running.slots:
                self._change(running, slots)

    def _change(self, running: Running, slots: tuple[str, ...]) -> None:
        """Give a job other slots. New processes take part a little later. Until then, old processes
        continue, unless the method restarts all processes."""
        grows = set(slots) - set(running.slots)
        self._record(running)
        self._changes += bool(running.slots)
        running.before = (0, 1) if self._method.restarts else (running.size, running.hosts)
        running.slots, running.changed = slots, self._now
        running.hosts = len({self._host[slot] for slot in slots})
        if running.begun:
            running.frozen = self._now + self._method.cost
        running.slower = self._now + START if grows else -math.inf
        running.begun = True

    def _next(self) -> float:
        times = [self._again]
        if self._todo:
            times.append(self._todo[-1].arrival)
        for running in self._active:
            times += [t for t in (running.frozen, running.slower) if t > self._now]
            rate = self._rate(running)
            if rate:
                times.append(self._now + running.left / rate)
        return min(times)

    def _rate(self, running: Running) -> float:
        """Return the steps per second from now to the next event."""
        if not running.slots or self._now < running.frozen:
            return 0.0
        size, hosts = running.size, running.hosts
        if self._now < running.slower:
            before, there = running.before
            if not before:
                return 0.0
            if before < size:
                size, hosts = before, there
        return 1 / running.job.model.seconds(size, hosts)

    def _advance(self, until: float) -> None:
        if until == math.inf:
            names = ", ".join(running.job.name for running in self._active[:3])
            raise ValueError(f"{self._method.name}: jobs {names} never start")
        passed = until - self._now
        ended = []
        for running in self._active:
            rate = self._rate(running)
            running.left -= rate * passed
            running.used += running.size * passed
            running.waited += passed * (not running.slots)
            self._busy += running.size * passed
            if rate and self._now >= running.slower:
                self._report(running)
            if running.left <= 1e-9 * running.job.steps:
                ended.append(running)
        self._now = until
        for running in ended:
            self._record(running)
            self._active.remove(running)
            self._times[running.job.name] = until - running.job.arrival
            self._event()

    def _record(self, running: Running) -> None:
        """Record the stretch since the job's last change."""
        if running.slots and self._now > running.changed:
            name, size = running.job.name, running.size
            self._stretches.append(Stretch(name, running.changed, self._now, size))

    def _report(self, running: Running) -> None:
        """Report the time of a step at this size to the job's model."""
        key = (running.size, min(running.hosts, 2))
        if key in running.reports:
            return
        error = random.Random(f"{running.job.name} {key}").gauss(1, _ERROR)
        seconds = running.job.model.seconds(*key) * max(error, 0.5)
        running.reports[key] = StepTiming(*key, seconds)
        running.model = model_fit(running.model.shares, list(running.reports.values()))
