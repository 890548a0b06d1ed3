"""From what is wanted to results: a scheduler for each scene, and a progress bar."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from tqdm import tqdm

from bench.cases import Case
from bench.laboratory import open_laboratory
from bench.libraries import Here, Library, Scene
from bench.machine import Machine
from bench.results import Result
from bench.scheduler import Effort, Scheduler, candidates


@dataclass(frozen=True)
class Wanted:
    """Cases, and who is to do them where. `ways` are those of all libraries, `own` of libddl alone
    (see Candidate). With `lab`, the rate of its links, `hosts` counts instead of `ranks`."""

    cases: Sequence[Case]
    ranks: Sequence[int] = (2,)
    ways: Sequence[str] = ()
    own: Sequence[str] = ()
    lab: str = ""
    hosts: Sequence[int] = (1, 1)


@dataclass
class Report:
    """What was measured so far, and what a reader should know about it."""

    results: list[Result] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def measure(
    wanted: Wanted,
    effort: Effort,
    machine: Machine,
    libraries: Sequence[Library],
    deadline: float,
    report: Report,
) -> None:
    """Add to the report case by case, so that what was measured is there whenever it ends. After
    the deadline (time.monotonic) no case is begun."""
    with ExitStack() as stack:
        scenes: list[tuple[Scene, float]] = [(Here(n), 0.0) for n in wanted.ranks]
        if wanted.lab:
            scenes = [stack.enter_context(open_laboratory(wanted.hosts, wanted.lab))]
        bar = stack.enter_context(
            tqdm(total=len(scenes) * len(wanted.cases), unit="case", file=sys.stderr)
        )

        def tick(what: str) -> None:
            bar.set_postfix_str(what, refresh=sys.stderr.isatty())

        for scene, wire in scenes:
            with Scheduler(machine, scene, libraries, effort, wire, tick) as scheduler:
                report.notes += scheduler.notes
                for case in wanted.cases:
                    if time.monotonic() > deadline:
                        report.notes.append("the time is over: not all was measured")
                        return
                    who = candidates(libraries, case, wanted.ways, wanted.own)
                    report.results.append(scheduler.run(case, who))
                    bar.update()
