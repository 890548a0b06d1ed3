# SPDX-License-Identifier: Apache-2.0
"""`python -m bench resize`: measures how long the other workers pause when workers join and leave.

Each row is an elastic job that grows and shrinks in turns. The pause is the time of the step in
which the group changed, minus the median of the 20 steps before, on a worker that was there all the
time. The table compares it with the time of a copy of the state, divided by the number of workers
that send it. The parts of the pause are the times of the parts of that step, again minus the
medians of the steps before:

    creation  of the next comm; in parallel with the steps, and not part of the pause
    switch    from the old comm to the next one: the old one is closed, all meet in the next one
    copy      of this worker's part of the state, for workers that have joined
    sums      of the next step's shares, including workers that have joined
    vote      of the next step: the wait for the slowest worker
    rest      the next step's shares, and everything else
"""

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench.cases import UsageError, make_parser
from bench.resize_phases import CLOSING, COPY, CREATION, HELLO, SUMS, VOTE, Span, install, read
from ddl_elastic import Job

BEFORE = 20  # steps, whose median is the usual time
SPACING = 30  # steps between two changes
# For each part of the pause: its spans.
PARTS = {"switch": (CLOSING, HELLO), "copy": (COPY,), "sums": (SUMS,), "vote": (VOTE,)}
COLUMNS = (CREATION, *PARTS, "rest")


class Clock:
    """A schedule that records when each step was committed."""

    folder = Path()

    def __init__(self) -> None:
        self._steps = 0

    def step(self) -> None:
        self._steps += 1
        with open(self.folder / f"{os.getpid()}", "a") as file:
            file.write(f"{self._steps} {time.monotonic()}\n")

    def state_dict(self) -> dict[str, int]:
        return {"steps": self._steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._steps = state["steps"]


class Samples:
    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((WIDTH,), index / len(self)), torch.tensor(index % 2)


WIDTH = 64


class Model(nn.Module):
    """A model with many parameters, of which a share uses few: the state matters here, not the
    computation."""

    def __init__(self, megabytes: float) -> None:
        super().__init__()
        rows = max(2, int(megabytes * 1e6 / 4 / WIDTH))
        self.weight = nn.Parameter(torch.randn(rows, WIDTH) / 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight[:2].T


class Driver:
    def __init__(self, job: Job, sizes: Sequence[int]) -> None:
        self._job, self._sizes, self._next = job, list(sizes), 1

    def __call__(self, report: dict[str, Any]) -> None:
        if self._sizes and report["steps"] >= self._next:
            self._job.resize(self._sizes.pop(0))
            self._next = report["steps"] + SPACING


@dataclass(frozen=True)
class Change:
    kind: str  # "joined" or "left"
    step: int  # the step before which the group changed
    pause: float  # seconds
    parts: dict[str, float]  # the parts of the pause, and the creation


def run(low: int, high: int, megabytes: float, rounds: int) -> list[Change]:
    steps = (2 * rounds + 2) * SPACING
    with tempfile.TemporaryDirectory(prefix="bench-resize-") as folder:
        Clock.folder = Path(folder)
        job = Job(
            model=lambda: Model(megabytes),
            data=Samples(),
            loss=nn.functional.cross_entropy,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
            schedule=lambda _: Clock(),
            batch=2 * high,
            logical=high,
            workers=f"{low}:{high}",
            steps=steps,
            progress=False,
        )
        job.train(Driver(job, [low, *[high, low] * rounds]))
        report = job.report()
        if died := [event for event in report["events"] if event["kind"] == "died"]:
            raise UsageError(f"a worker has died, which invalidates the measurement: {died}")
        pid = report["workers"][0]["pid"]
        lines = [line.split() for line in (Path(folder) / str(pid)).read_text().splitlines()]
        spans = read(Path(folder), pid)
    times = {int(step) - 1: float(at) for step, at in lines}
    kinds = {e["step"]: e["kind"] for e in report["events"] if e["kind"] in ("joined", "left")}
    return [measure(times, spans, step, kind) for step, kind in kinds.items()]


def measure(times: dict[int, float], spans: Sequence[Span], step: int, kind: str) -> Change:
    def seconds(of: int, part: str) -> float:
        begin, end = times[of - 1], times[of]
        return sum(s.seconds for s in spans if s.name in PARTS[part] and begin < s.ended <= end)

    usual = range(max(1, step - BEFORE), step)
    pause = times[step] - times[step - 1]
    pause -= statistics.median(times[each] - times[each - 1] for each in usual)
    parts = {
        part: seconds(step, part) - statistics.median(seconds(each, part) for each in usual)
        for part in PARTS
    }
    parts["rest"] = pause - sum(parts.values())
    created = [each.seconds for each in spans if each.name == CREATION and each.ended < times[step]]
    return Change(kind, step, pause, {CREATION: created[-1] if created else 0.0, **parts})


def copy_seconds(megabytes: float) -> float:
    source = torch.ones(int(megabytes * 1e6 / 4))
    target, times = torch.empty_like(source), []
    for _ in range(11):
        began = time.monotonic()
        target.copy_(source)
        times.append(time.monotonic() - began)
    return statistics.median(times)


def rows(low: int, high: int, megabytes: float, rounds: int) -> list[str]:
    found = run(low, high, megabytes, rounds)
    lines = []
    for kind, change in (("joined", f"{low} to {high}"), ("left", f"{high} to {low}")):
        changes = [each for each in found if each.kind == kind]
        if not changes:  # the steps had ended before
            lines.append(f"| {change} | {megabytes:.0f} MB | 0 |" + " |" * (3 + len(COLUMNS)))
            continue
        pauses = [1e3 * each.pause for each in changes]
        parts = [1e3 * statistics.median(each.parts[n] for each in changes) for n in COLUMNS]
        copy = 1e3 * copy_seconds(megabytes / low) if kind == "joined" else 0.0
        lines.append(
            f"| {change} | {megabytes:.0f} MB | {len(pauses)} | {statistics.median(pauses):.0f} ms"
            f" | {max(pauses):.0f} ms | {copy:.0f} ms |"
            + "".join(f" {part:.0f} |" for part in parts)
        )
    return lines


def main(argv: Sequence[str]) -> int:
    parser = make_parser("resize", __doc__)
    parser.add_argument("--workers", default="2:4,4:8", help="low:high, ... (default: %(default)s)")
    parser.add_argument(
        "--megabytes", type=float, default=100.0, help="size of the state (default: 100)"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="times to grow and shrink (default: 5)"
    )
    arguments = parser.parse_args(argv)
    try:
        pairs = [tuple(map(int, each.split(":"))) for each in arguments.workers.split(",")]
        table = [(low, high) for low, high in pairs if 1 <= low < high]
    except ValueError:
        table = []
    if not table or arguments.megabytes <= 0 or arguments.rounds < 1:
        raise UsageError(f"--workers {arguments.workers}: must be low:high, such as 2:4")
    install(lambda: Clock.folder)
    print(
        "| workers | state | changes | pause, median | worst | a copy of a part of the state |"
        + "".join(f" {name}, ms |" for name in COLUMNS)
    )
    print("|---|---|---|---|---|---|" + "---|" * len(COLUMNS))
    for low, high in table:
        print("\n".join(rows(low, high, arguments.megabytes, arguments.rounds)), flush=True)
    return 0
