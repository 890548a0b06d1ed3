# SPDX-License-Identifier: Apache-2.0
"""One long job, in which each 0.5 to 2 s a worker is killed, or another number of them asked for.

    python tests/elastic/soak_changes.py [--seconds 60] [--seed 1]

Whoever is killed is replaced. The job ends with the state of an undisturbed one, goes on within a
time limit after each change, and has the number of workers in the end that was asked for. One
worker is never killed: its memory and descriptors stay as they are, as do those of the coordinator.
"""

import argparse
import os
import random
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from soak import descriptors, memory
from torch import nn

from ddl_elastic import Job
from ddl_elastic.base import environment

SIZES = range(2, 7)  # at most 8 ranks while some leave and some come
LOGICAL = 12
SHARE = 0.01  # seconds that a share takes, beside its computation
STEP = 0.05  # seconds, about
KEPT = 1  # the member that is never killed
LIMIT = 60.0  # seconds without a step, and until all workers are there, on a busy machine
SETTLED = 0.4  # the fraction of steps after which memory and descriptors no longer grow
LAST = 0.9  # the fraction of steps after which nothing is changed any more
GROWTH = 65536  # KiB by which the memory may differ from then on: comms have 1 to 6 ranks
FILES = 32  # the same for the descriptors


class Samples:
    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((8,), index / 1000) + torch.rand(8), torch.tensor(index % 3)


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def make_job(steps: int, workers: str | int, seconds: float, slow: Path) -> Job:
    """Return the job. Each share takes `seconds` longer, and much longer while the file `slow`
    exists."""

    def loss(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        time.sleep(20 * seconds if slow.exists() else seconds)
        return nn.functional.cross_entropy(output, labels)

    return Job(
        model=make_model,
        data=Samples(),
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        batch=24,
        logical=LOGICAL,
        workers=workers,
        steps=steps,
        seed=3,
        progress=False,
    )


class Disturber:
    """Called with the job's reports."""

    def __init__(self, job: Job, steps: int, slow: Path, chance: random.Random) -> None:
        self._job, self._steps, self._slow, self._chance = job, steps, slow, chance
        self._next = self._moved = time.monotonic()  # change; the last step
        self._last: float | None = None  # time at which the last change was complete
        self.target = 0
        self.kept_number = False  # of workers, in the end
        self.longest = 0.0  # seconds without a step
        self.kills = self.sizes = 0
        self.used: list[tuple[float, list[int]]] = []  # by part of the steps: see `resources`

    def __call__(self, report: dict[str, Any]) -> None:
        now, part = time.monotonic(), report["steps"] / self._steps
        self.longest, self._moved = max(self.longest, now - self._moved), now
        running = {n: w["pid"] for n, w in report["workers"].items() if w["state"] == "running"}
        if part >= LAST:
            self._wait(now, len(running))
        elif now >= self._next:
            self._next = now + self._chance.uniform(0.5, 2)
            self.used.append((part, resources(running[KEPT])))
            self._change([pid for member, pid in running.items() if member != KEPT])

    def _change(self, others: list[int]) -> None:
        if others and self.target and self._chance.random() < 0.5:
            self.kills += 1
            with suppress(ProcessLookupError):
                os.kill(self._chance.choice(others), signal.SIGKILL)
        else:
            self.sizes += 1
            self.target = self._chance.choice([n for n in SIZES if n != self.target])
            self._job.resize(self.target)

    def _wait(self, now: float, running: int) -> None:
        if self._last is None:
            self._last = now
            self._slow.touch()
        self.kept_number = self.kept_number or running == self.target
        if self.kept_number or now - self._last > LIMIT:
            self._slow.unlink(missing_ok=True)


def resources(pid: int) -> list[int]:
    """Return the memory in KiB and the descriptors of a worker, and those of this process."""
    text = Path(f"/proc/{pid}/status").read_text()
    files = len(os.listdir(f"/proc/{pid}/fd"))
    return [int(text.split("VmRSS:")[1].split()[0]), files, memory(), descriptors()]


def check(disturber: Disturber) -> None:
    if disturber.longest > LIMIT:
        raise SystemExit(f"no step in {disturber.longest:.1f} s")
    if not disturber.kept_number:
        raise SystemExit(f"there were no {disturber.target} workers within {LIMIT} s")
    before = [used for part, used in disturber.used if part < SETTLED]
    after = [used for part, used in disturber.used if part >= SETTLED]
    if not before or not after:
        return  # in this many seconds
    for column, growth in enumerate((GROWTH, FILES, GROWTH, FILES)):
        if max(each[column] for each in after) > max(each[column] for each in before) + growth:
            raise SystemExit(f"memory or descriptors grew, in column {column}: {disturber.used}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train one elastic job that changes all the time.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    steps = max(50, int(arguments.seconds / STEP))
    environment.cores = lambda: 4
    with tempfile.TemporaryDirectory() as folder:
        slow = Path(folder, "slow")
        alone = make_job(steps, 1, 0.0, slow)
        alone.train()
        job = make_job(steps, f"1:{max(SIZES)}", SHARE, slow)
        disturber = Disturber(job, steps, slow, random.Random(arguments.seed))
        job.train(disturber)
    report = job.report()
    if report["hash"] != alone.report()["hash"]:
        raise SystemExit(f"the final states differ: {report}")
    check(disturber)
    last = disturber.used[-1][1]
    print(
        f"{report['seconds']:.0f} s, {steps} steps, one hash; {disturber.kills} kills,"
        f" {disturber.sizes} other numbers of workers, {len(report['workers'])} workers in all;"
        f" {disturber.longest:.1f} s without a step; in the end {last[0]} KiB and {last[1]}"
        f" descriptors of a worker, {last[2]} and {last[3]} of the coordinator"
    )


if __name__ == "__main__":
    main()
