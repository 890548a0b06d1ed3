# SPDX-License-Identifier: Apache-2.0
"""The scheduler of turns: runs the libraries round by round, and records the machine's state
between turns."""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bench.busy_loops import BusyLoops
from bench.cases import BURST, DTYPES, IN_C, Candidate, Case
from bench.libraries import Library, Placement
from bench.machine import Machine, State
from bench.results import LIMIT, Result, Turn, summarize
from bench.worker_group import WorkerError, WorkerGroup
from ddl_launch.base.quantities import show_bytes

SMALL = 16 << 10  # bytes up to which calls are timed in batches, since reading the clock costs time
BATCH_MAX = 50
BATCH_SECONDS = 200e-6
# Ranks that share cores begin a batch so far apart that a short one would measure little else.
SHARED_BATCH_MAX = 500
SHARED_BATCH_SECONDS = 5e-3
ITERATIONS_MAX = 4000  # in one turn
DIRECT_FROM = 64 << 10  # bytes from which on memory limits the time, not latency


@dataclass
class Effort:
    """The effort of a measurement: rounds, and the least seconds of a turn. `busy`: do not repeat
    turns during which another program ran."""

    rounds: int = 3
    seconds: float = 0.15
    busy: bool = False

    def iterations(self, wall: float) -> int:
        return max(2, min(int(self.seconds / wall) + 1, ITERATIONS_MAX))

    def limit(self, candidates: int) -> float:
        return 5 + 4 * self.rounds * candidates * self.seconds


class Scheduler:
    """A scheduler that runs cases on the worker groups of several libraries. All stay alive."""

    def __init__(
        self,
        machine: Machine,
        placement: Placement,
        libraries: Sequence[Library],
        effort: Effort,
        wire: float = 0.0,
        tick: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`wire` is the rate of one stream between two hosts in bytes per second, 0 on one host.
        `tick` is called with a description of each step."""
        self.machine, self.placement, self.effort, self.wire = machine, placement, effort, wire
        self.tick = tick
        self.ranks = sum(placement.hosts)
        self.worker_groups = {
            library.name: WorkerGroup(library, placement) for library in libraries
        }
        self.notes: list[str] = []
        self._loops = BusyLoops(placement.loops)

    def __enter__(self) -> "Scheduler":
        for workers in self.worker_groups.values():
            self.tick(f"starting {workers.library.name}")
            try:
                workers.start()
            except WorkerError as error:
                self.notes.append(str(error))
                workers.end()
        self.worker_groups = {name: w for name, w in self.worker_groups.items() if w.alive}
        self._loops.__enter__()
        return self

    def __exit__(self, *_: Any) -> None:
        self._loops.__exit__()
        for workers in self.worker_groups.values():
            workers.end()

    def run(self, case: Case, candidates: Sequence[Candidate]) -> Result:
        turns: list[Turn] = []
        notes: list[str] = []
        with self._prepared(case, {c.library for c in candidates}, notes) as ready:
            paces: dict[Candidate, tuple[int, int]] = {}
            for candidate in candidates:
                if candidate.library in ready:
                    try:
                        paces[candidate] = self._pace(case, candidate)
                    except WorkerError as error:
                        notes.append(f"{_what(case, candidate)}: {error}")
            order = list(paces)
            alone = len(self.placement.hosts) == 1 and not self.placement.loops
            if alone and case.bytes >= DIRECT_FROM:
                order += [Candidate(LIMIT, "plain"), Candidate(LIMIT, "streaming")]
            state = self._state()
            deadline = time.monotonic() + self.effort.limit(len(order))
            for number in range(2 * self.effort.rounds):
                enough = min((self._counted(turns, c) for c in order), default=0)
                late = number >= self.effort.rounds and time.monotonic() > deadline
                if late or enough >= self.effort.rounds:
                    break
                shift = number % max(len(order), 1)
                for candidate in order[shift:] + order[:shift]:
                    try:
                        used, start = self._loops.processor_seconds(), time.monotonic()
                        seconds = self._turn(case, candidate, paces)
                        used = self._loops.processor_seconds() - used
                        rate = used / (time.monotonic() - start)
                    except WorkerError as error:
                        notes.append(f"{_what(case, candidate)}: {error}")
                        paces.pop(candidate, None)
                        order = [c for c in order if c != candidate]
                        state = self._state()
                        continue
                    after = self._state()
                    turns.append(Turn(candidate, seconds, state, after, number, rate))
                    state = after
        result = summarize(case, self.placement.name, self.ranks, turns, self.effort.busy)
        result.notes = notes
        if self.wire and result.rows:
            # The bytes that each host must send, for any distribution over its ranks.
            hosts = len(self.placement.hosts)
            least = case.bytes * case.bus_factor(hosts) / self.wire
            result.limit = dict.fromkeys(result.states(), least)
        return result

    def _state(self) -> State:
        return State(0.0, 0.0, taken=True) if self.placement.loops else self.machine.state()

    def _counted(self, turns: Sequence[Turn], candidate: Candidate) -> int:
        """Return how many of the candidate's turns count. Further rounds make up for the others, up
        to twice the number."""
        return sum(
            turn.candidate == candidate
            and not turn.changed
            and (self.effort.busy or not turn.disturbed)
            for turn in turns
        )

    @contextmanager
    def _prepared(self, case: Case, names: set[str], notes: list[str]) -> Iterator[set[str]]:
        """Allocate buffers for the case. Yield the names of the libraries that support it."""
        ready = set()
        fields = {"operation": case.operation, "dtype": DTYPES[case.dtype], "bytes": case.bytes}
        for name, workers in self.worker_groups.items():
            if name in names and workers.alive:
                try:
                    workers.ask(do="prepare", **fields)
                    ready.add(name)
                except WorkerError as error:
                    notes.append(f"{_what(case)}: {error}")
        try:
            yield ready
        finally:
            for name in ready:
                if self.worker_groups[name].alive:
                    self.worker_groups[name].ask(do="release")

    def _pace(self, case: Case, candidate: Candidate) -> tuple[int, int]:
        """Warm the library up. Return the iterations that fill a turn, and the calls in each."""
        workers = self.worker_groups[candidate.library]
        batch = 1
        if candidate.way == "burst":
            batch = BURST
        elif case.bytes <= SMALL and candidate.way != "late":
            most, batch_seconds = BATCH_MAX, BATCH_SECONDS
            if max(self.placement.hosts) > (os.cpu_count() or 1):
                most, batch_seconds = SHARED_BATCH_MAX, SHARED_BATCH_SECONDS
            batch, before = 10, 0
            while before < batch:  # calls are faster in longer batches, and after the last case
                before = batch
                seconds, _ = workers.run(candidate.way, 3, batch)
                once = max(statistics.median(seconds), 1e-7)
                batch = max(1, min(most, round(batch_seconds / once)))
        seconds, wall = workers.run(candidate.way, 3, batch)
        return self.effort.iterations(wall / len(seconds)), batch

    def _turn(
        self, case: Case, candidate: Candidate, paces: dict[Candidate, tuple[int, int]]
    ) -> list[float]:
        self.tick(f"{_what(case)} {candidate}")
        if candidate.library == LIMIT:
            guess = max(case.bytes / 5e9 * 3, 20e-6)
            iterations = max(4, min(int(self.effort.seconds / 2 / guess), 500))
            stream = candidate.way == "streaming"
            return self.machine.direct(case, self.ranks, stream, iterations)[1:]
        if not self.worker_groups[candidate.library].alive:
            raise WorkerError(f"{candidate.library}: its ranks have died")
        iterations, batch = paces[candidate]
        taken: list[float] = []
        left = self.effort.seconds
        while left > 0 and len(taken) < ITERATIONS_MAX:
            seconds, wall = self.worker_groups[candidate.library].run(
                candidate.way, iterations, batch
            )
            taken += seconds
            left -= wall
            iterations = self.effort.iterations(wall / iterations) if left > 0 else iterations
        return taken


def _what(case: Case, candidate: Candidate | None = None) -> str:
    way = f" {candidate.way}" if candidate and candidate.way else ""
    return f"{case.operation} {case.dtype} {show_bytes(case.bytes)}{way}"


def candidates(
    libraries: Sequence[Library], case: Case, ways: Sequence[str], own: Sequence[str]
) -> list[Candidate]:
    """Return the candidates for a case: every library in each of `ways`, and libddl also in each of
    `own`. Only all-reduces of f32 can be called from C."""
    in_c = case.operation == "allreduce" and case.dtype == "f32"
    found = []
    for library in libraries:
        for way in (*ways, *(own if library.kind == "ddl" else ())):
            if way not in IN_C or (library.loop and in_c):
                found.append(Candidate(library.name, way))
    return found
