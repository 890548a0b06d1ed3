# SPDX-License-Identifier: Apache-2.0
"""Real faults in real jobs: every survivor gets the right error in time, and continues.

    python tests/chaos/run.py                    everything, in 4 minutes where nothing else runs
    python tests/chaos/run.py --short            a fixed sample, in 45 seconds
    python tests/chaos/run.py --only kill,steps  some of it (see PARTS)
    python tests/chaos/run.py --table docs/reliability.md   put the table of times into this page
    python tests/chaos/run.py --short --only kill,stop --ranks 16,48   other numbers of ranks
    python tests/chaos/run.py --only cut --ranks 36       9 ranks on each of 4 hosts, too

The matrix is fault x operation x link (shm, tcp) x ranks (2, 4, or as --ranks says for the faults
of signals and for those that stop a process). Times are from just before the
fault to the error in a survivor's hands. A dead process must be known within 0.2 s and a silent one
within 4 s. Since the machine may be overloaded, a probe beside it all notes how late it was woken;
where that may be the cause of a late answer, three times the worst such delay within the case is
allowed on top, and where the load is more than twice the cores, the bound once more for each time
that it is above them. How often that was needed is said at the end. The sample is part of
`make test`, which runs anywhere: it allows four times each bound, so a death that is known only by
silence is still an error.

Network faults need root, iproute2 and namespaces, and are skipped without them.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lab"))
import faults
from faults import SIGNALS
from job import DEAD_S, SILENT_S, Build, Case, Outcome, Probe, Wrong
from lab import Lab

OPERATIONS = [
    *("small", "large", "vast", "lent", "lent-in-place", "ordered", "broadcast", "reduce"),
    *(
        "reduce-scatter",
        "all-gather",
        "all-to-all",
        "barrier",
        "messages",
        "named",
        "asynchronous",
        "idle",
        "elsewhere",
    ),
]
BY_STEPS = OPERATIONS[: OPERATIONS.index("messages") + 1]
VAST_DIFFERS = ("shm", 2)  # from "large": the steps of a wave run one after the other
PARTS = [*SIGNALS, "stop", "steps", "creation", "last", "flat", "gil", "cut", "garbage"]

CUT_RANKS = (2, 4)  # each rank on its own host
CUT_MANY = 48  # most ranks beyond the cut have no connection to one on this side
MOST_HOSTS = 4

Task = Callable[[], list[Outcome]]


def hosts_of(size: int) -> int:
    """Return the number of hosts on which the ranks of a job run if one host is cut off."""
    return min(size, MOST_HOSTS)


def guarded(run: Callable[[], Outcome], case: Case) -> list[Outcome]:
    try:
        return [run()]
    except (Wrong, OSError, subprocess.SubprocessError, RuntimeError) as error:
        return [Outcome(case, wrong=str(error))]


def every_step(build: Build, probe: Probe, case: Case, stride: int) -> list[Outcome]:
    """A rank dies after one step, after two, and so on, until the plan has no more."""
    outcomes: list[Outcome] = []
    for number in itertools.count(1, stride):
        try:
            outcome, died = faults.steps(build, probe, case, number)
        except (Wrong, OSError) as error:
            return [*outcomes, Outcome(case, wrong=f"at step {number}: {error}")]
        if not died:
            return outcomes
        outcomes.append(outcome)
    return outcomes


class Plan:
    """The tasks: those that compute, which run one after the other, and those that mostly
    wait."""

    def __init__(
        self, build: Build, probe: Probe, only: Sequence[str], short: bool, ranks: Sequence[int]
    ) -> None:
        self.build, self.probe, self.only, self.short = build, probe, only, short
        self.ranks = ranks
        self.busy: list[Task] = []
        self.waiting: list[Task] = []
        self._fill()

    def _add(
        self, tasks: list[Task], run: Callable[..., Outcome], case: Case, *more: object
    ) -> None:
        tasks.append(lambda: guarded(lambda: run(self.build, self.probe, case, *more), case))

    def _matrix(self, fault: str) -> Iterator[tuple[str, str, int]]:
        for operation, link, size in itertools.product(OPERATIONS, ("shm", "tcp"), self.ranks):
            if size == 2 and (operation == "elsewhere" or fault == "two"):
                continue
            if operation == "vast" and (link, size) != VAST_DIFFERS:
                continue
            if operation.startswith("lent") and link != "shm":
                continue
            if (
                self.short
                and fault not in ("kill", "stop")
                and (operation, size) != ("large", max(self.ranks))
            ):
                continue  # the way it died makes no difference to most operations
            yield operation, link, size

    def _fill(self) -> None:
        times = 1 if self.short else 3
        for fault in SIGNALS:
            if fault in self.only:
                for (operation, link, size), seed in itertools.product(
                    self._matrix(fault), range(times)
                ):
                    self._add(self.busy, faults.die, Case(fault, link, size, operation, seed))
        if "stop" in self.only:
            for operation, link, size in self._matrix("stop"):
                if not self.short or operation in ("small", "idle", "elsewhere"):
                    self._add(self.waiting, faults.stop, Case("stop", link, size, operation, 0))
        for link in ("shm", "tcp"):
            self._fill_one(link)

    def _fill_one(self, link: str) -> None:
        short, only = self.short, self.only
        if "steps" in only:
            chosen = (
                ["small", "large", "lent-in-place", "ordered"]
                if short
                else [o for o in BY_STEPS if o != "vast"]
            )
            chosen = [o for o in chosen if link == "shm" or not o.startswith("lent")]
            cases = list(itertools.product(chosen, (4,) if short else (2, 4)))
            if link == VAST_DIFFERS[0]:
                cases.append(("vast", VAST_DIFFERS[1]))
            for operation, size in cases:
                case = Case("step of a plan", link, size, operation, 0)
                stride = 1 if operation in ("small", "barrier") else 7 if short else 2
                if operation == "vast":
                    stride = 47 if short else 11
                self.busy.append(
                    lambda case=case, stride=stride: every_step(
                        self.build, self.probe, case, stride
                    )  # type: ignore[misc]
                )
        if "creation" in only:
            for seed, size in itertools.product(range(6 if short else 20), (2, 4)):
                case = Case("creation", link, size, "small", seed * (3 if short else 1))
                self._add(self.waiting, faults.create, case)
            self._add(self.waiting, faults.join_late, Case("late joiner", link, 4, "small", 0))
        if "last" in only:
            chosen = ["small", "large", "barrier", "all-gather"]
            for seed in range(32 if short else 250):
                for size in (2, 4):
                    case = Case("last", link, size, chosen[seed // 2 % 4], seed)
                    self._add(self.busy, faults.leave, case)
        if "flat" in only:
            cycles = 80 if short else 200
            self._add(self.waiting, faults.repeat, Case("repeated", link, 3, "small", 0), cycles)
        if "gil" in only and (not short or link == "tcp"):
            self._add(self.waiting, faults.hold_gil, Case("lock held", link, 2, "small", 0))
        if "garbage" in only:
            case = Case("garbage", link, 2, "small", 0)
            self._add(self.busy, faults.disturb, case, 15 if short else 60)

    def add_cuts(self, lab: Lab) -> None:
        hosts = iter(range(lab.hosts))
        for fault, size, operation in self.cuts():
            case = Case(fault, "tcp", size, operation, 0)
            own = list(itertools.islice(hosts, hosts_of(size)))
            self._add(self.waiting, faults.cut, case, lab, own)

    def cuts(self) -> list[tuple[str, int, str]]:
        if "cut" not in self.only or os.geteuid() or not shutil.which("ip"):
            return []
        operations = ("large",) if self.short else ("small", "large", "messages", "idle")
        kinds = ["link down", "packets dropped", "half-open"]
        if shutil.which("nft"):
            kinds.append("resets")
        else:
            print("resets by a firewall skipped: they need nftables")
        sizes = [*CUT_RANKS, *(size for size in self.ranks if size not in CUT_RANKS)]
        cases = list(itertools.product(kinds, sizes, operations))
        if self.short and CUT_MANY not in sizes:
            cases.append(("packets dropped", CUT_MANY, "large"))
        return cases


def run_all(plan: Plan) -> list[Outcome]:
    outcomes: list[Outcome] = []
    total = len(plan.busy) + len(plan.waiting)
    with (
        ThreadPoolExecutor(6) as side,
        ThreadPoolExecutor(1) as middle,
        tqdm(total=total, unit="case", smoothing=0, disable=None) as bar,
    ):

        def note(done: Future[list[Outcome]]) -> None:
            for outcome in done.result():
                if outcome.wrong:
                    tqdm.write(f"WRONG {outcome.case}: {outcome.wrong}")
            bar.update()

        futures = [side.submit(task) for task in plan.waiting]
        futures += [middle.submit(task) for task in plan.busy]
        for future in futures:
            future.add_done_callback(note)
        for future in futures:
            outcomes += future.result()
    return outcomes


# --------------------------------------------------------------------------------------- the table

NAMES = {
    "kill": "kill -9",
    "segv": "segmentation fault",
    "abort": "abort()",
    "exit": "exit without a leave message",
    "workers": "kill -9, forked workers live on",
    "two": "kill -9 of two at once",
    "step of a plan": "kill -9 after a step of a plan",
    "stop": "SIGSTOP",
    "link down": "the link of a host goes down",
    "packets dropped": "all packets dropped",
    "half-open": "packets dropped, then kill -9",
    "resets": "a firewall resets half of the ranks",
}
MARKS = ("<!-- begin: tests/chaos/run.py -->", "<!-- end: tests/chaos/run.py -->")


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def table(outcomes: Sequence[Outcome]) -> str:
    lines = [
        "| fault | link | ranks | operations | cases | median | worst | bound |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for fault, name in NAMES.items():
        sizes = sorted({o.case.size for o in outcomes})
        for link, size in itertools.product(("shm", "tcp"), sizes):
            found = [
                o
                for o in outcomes
                if (o.case.fault, o.case.link, o.case.size) == (fault, link, size)
            ]
            times = [s for o in found for s in o.seconds]
            if not times:
                continue
            bound = DEAD_S if fault in SIGNALS or fault == "step of a plan" else SILENT_S
            operations = len({o.case.operation for o in found})
            lines.append(
                f"| {name} | {link} | {size} | {operations} | {len(found)} | "
                f"{milliseconds(statistics.median(times))} | {milliseconds(max(times))} | "
                f"{bound:g} s |"
            )
    return "\n".join(lines)


def put(page: Path, text: str) -> None:
    """Return the text between the marks in the page."""
    before, _, rest = page.read_text().partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    if not after:
        raise SystemExit(f"{page} has no place for a table: {MARKS[0]} ... {MARKS[1]}")
    page.write_text(f"{before}{MARKS[0]}\n\n{text}\n\n{MARKS[1]}{after}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--short", action="store_true", help="a fixed sample, in 45 seconds")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks, as in 16,48")
    parser.add_argument("--table", type=Path, help="the page to put the table of times into")
    arguments = parser.parse_args()
    only = arguments.only.split(",")
    if unknown := set(only) - set(PARTS):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there is: {', '.join(PARTS)}")
    build = Build()
    probe = Probe(build, times=4 if arguments.short else 1)
    start = time.monotonic()
    try:
        ranks = [int(n) for n in arguments.ranks.split(",")]
        plan = Plan(build, probe, only, arguments.short, ranks)
        with contextlib.ExitStack() as stack:
            if cuts := plan.cuts():
                hosts = sum(hosts_of(size) for _, size, _ in cuts)
                plan.add_cuts(stack.enter_context(Lab(hosts, None)))
            elif "cut" in only:
                print("network faults skipped: they need root and iproute2")
            outcomes = run_all(plan)
    finally:
        probe.process.kill()
    wrong = [outcome for outcome in outcomes if outcome.wrong]
    excused = [outcome.allowance for outcome in outcomes if outcome.allowance]
    text = table(outcomes)
    print(text)
    if arguments.table:
        put(arguments.table, text)
    if excused:
        print(
            f"{len(excused)} cases were late by up to {max(excused):.3f} s, which the machine's "
            "own delays beside them excuse"
        )
    for outcome in wrong:
        print(f"WRONG {outcome.case}: {outcome.wrong}")
    print(f"{time.monotonic() - start:.0f} s")
    print(f"{len(outcomes) - len(wrong)} passed, {len(wrong)} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
