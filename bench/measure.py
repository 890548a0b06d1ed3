# SPDX-License-Identifier: Apache-2.0
"""The measurement of all cases, with one scheduler per placement and a progress bar."""

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from tqdm import tqdm

from bench.cases import Case
from bench.lab_hosts import open_lab
from bench.libraries import Library, OneHost, Placement
from bench.machine import Machine
from bench.results import Result
from bench.scheduler import Effort, Scheduler, candidates


@dataclass(frozen=True)
class Wanted:
    """The cases, the ways to call them and the placements.

    `ways` applies to all libraries, `own` to libddl only (see Candidate). `loops` has numbers of
    busy loops beside the ranks. `lab` is the rate of the lab's links. With a lab, `hosts`, the
    ranks on each host, replaces `ranks`.
    """

    cases: Sequence[Case]
    ranks: Sequence[int] = (2,)
    loops: Sequence[int] = (0,)
    ways: Sequence[str] = ("",)
    own: Sequence[str] = ()
    lab: str = ""
    hosts: Sequence[int] = (1, 1)


@dataclass
class Report:
    """The results so far, and notes for their reader."""

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
    """Add the results to the report, case by case, so that an interrupted run keeps its results. No
    case starts after the deadline (time.monotonic)."""
    with ExitStack() as stack:
        placements: list[tuple[Placement, float]] = [
            (OneHost(n, loops), 0.0) for n in wanted.ranks for loops in wanted.loops
        ]
        if wanted.lab:
            placements = [stack.enter_context(open_lab(wanted.hosts, wanted.lab))]
        bar = stack.enter_context(
            tqdm(total=len(placements) * len(wanted.cases), unit="case", file=sys.stderr)
        )

        def tick(what: str) -> None:
            bar.set_postfix_str(what, refresh=sys.stderr.isatty())

        for placement, wire in placements:
            with Scheduler(machine, placement, libraries, effort, wire, tick) as scheduler:
                report.notes += scheduler.notes
                for case in wanted.cases:
                    if time.monotonic() > deadline:
                        report.notes.append(
                            "the time limit was reached: some cases were not measured"
                        )
                        return
                    chosen = candidates(libraries, case, wanted.ways, wanted.own)
                    report.results.append(scheduler.run(case, chosen))
                    bar.update()
