# SPDX-License-Identifier: Apache-2.0
"""Jobs without a loop of their own, for tests: each argument is one, as JSON; prints the reports.

`kill` lists (after so many steps, member); a member "agent N" is member N's agent. With SIGTERM as
a third value, the member is asked to leave. `resize` lists (after so many steps, workers), and then
moments at which a worker is struck, see moments.py, as `how` says. With `others` nobody is killed
unless so many others train. With `changes` the steps are slow until all kills are done and so many
workers have joined, left or died: the job does not end before. With `go` those that pause
go on when a worker is reported in this state. Whatever is wrong with a job is printed as its
"error".
"""

import json
import math
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ddl_elastic import Job, JobFailed
from ddl_elastic.base import environment
from ddl_elastic.coordinator import watchdogs
from ddl_elastic.frameworks.protocol import digest
from ddl_elastic.shares import balance
from ddl_elastic.worker import trainer
from ddl_torch.elastic import TorchAdapter

sys.path.insert(0, str(Path(__file__).parent))

import moments

IMAGES = torch.randn(150, 1, 8, 8, generator=torch.Generator().manual_seed(1))
LABELS = torch.randint(10, (150,), generator=torch.Generator().manual_seed(2))


class Samples:
    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return IMAGES[index] + random.random(), LABELS[index]


class FailingSamples(Samples):
    """Sample 3 cannot be read; only at first if there is a file of this name."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index == 3 and (self.always or Path("fail once").exists()):
            Path("fail once").unlink(missing_ok=True)
            print("about to read sample 3")
            raise OSError("sample 3 cannot be read")
        return super().__getitem__(index)

    def __init__(self, always: bool) -> None:
        self.always = always


class Stream:
    def seek(self, position: int) -> None:
        self.position = position

    def __next__(self) -> tuple[torch.Tensor, torch.Tensor]:
        self.position += 1
        return Samples()[self.position % len(IMAGES)]


def weighted_loss(output: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    counted = labels != 0
    return (cross_entropy(output, labels, reduction="none") * counted).sum(), counted.sum()


LOSSES = {False: cross_entropy, True: weighted_loss}


def make_model() -> nn.Module:
    moments.die_once("start")
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
        *(nn.Flatten(), nn.Dropout(0.2), nn.Linear(4 * 36, 10)),
    )


def make_optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)


def make_schedule(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)


CHANGES = ("joined", "left", "died")
# Options of Job that cases have.
OPTIONS = ("checkpoint", "every", "keep", "local_steps", "moments", "clip_norm")
JOINED = ("observing", "running", "done")  # states of workers


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class Disturber:
    """Kills, and asks for other numbers of workers (after so many steps, workers)."""

    def __init__(self, job: Job, case: dict[str, Any]) -> None:
        self.job, self.kills, self.sizes = job, case.get("kill", []), case.get("resize", [])
        self.how, self.others = case.get("how", "kill"), case.get("others", 0)
        self.changes = case.get("changes", 0)
        self.go = case.get("go")
        self.killed = set[int]()  # whose ends may not be known yet

    def __call__(self, report: dict[str, Any]) -> None:
        while self.sizes and report["steps"] >= self.sizes[0][0]:
            _, size, *moments = self.sizes.pop(0)
            for moment in moments:
                Path(f"die in {moment}").write_text(self.how)
            self.job.resize(size)
        changes = [each for each in report["events"] if each["kind"] in CHANGES]
        if not self.kills and len(changes) >= self.changes:
            Path("slow").unlink(missing_ok=True)
        workers = report["workers"]
        while self.kills and report["steps"] >= self.kills[0][0]:
            _, whom, *how = self.kills[0]
            member = int(str(whom).split()[-1])
            running = {each for each, told in workers.items() if told["state"] == "running"}
            if not running or len(running - self.killed - {member}) < self.others:
                break
            if member not in workers or workers[member]["state"] not in JOINED:
                break  # it is to join first
            self.kills.pop(0)
            self.killed.add(member)
            pid = workers[member]["pid"]
            os.kill(parent_of(pid) if "agent" in str(whom) else pid, *how or [signal.SIGKILL])
        if any(worker["state"] == self.go for worker in workers.values()):
            Path("go").touch()


def make_data(case: dict[str, Any]) -> Any:
    if "fail" in case:
        Path("fail once").touch()
        return FailingSamples(case["fail"] == "always")
    return Stream() if "steps" in case else Samples()


def make_slow(slow: dict[str, float], shares: dict[str, int]) -> Any:
    work, seconds, left = trainer.work, 0.0, math.inf

    def work_slowly(spec: Any, *arguments: Any) -> None:
        nonlocal seconds, left
        seconds, left = slow.get(str(spec.member), 0.0), shares.get(str(spec.member), math.inf)
        work(spec, *arguments)

    def loss(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        nonlocal left
        left -= 1
        time.sleep(seconds if left >= 0 else 0.0)
        return cross_entropy(output, labels)

    trainer.work = work_slowly
    return loss


def held_up(loss: Any) -> Any:
    def slow_loss(output: torch.Tensor, labels: torch.Tensor) -> Any:
        if Path("slow").exists():
            time.sleep(0.03)
        return loss(output, labels)

    return slow_loss


def run(case: dict[str, Any]) -> dict[str, Any]:
    if "start" in case:  # with so many workers
        environment.cores = lambda: case["start"]
    loss = LOSSES[case.get("weighted", False)]
    if "slow" in case:
        loss = make_slow(case["slow"], case.get("slow_shares", {}))
    job = Job(
        model=make_model,
        data=make_data(case),
        loss=held_up(loss),
        optimizer=make_optimizer,
        schedule=make_schedule,
        batch=case.get("batch", 24),
        logical=12,
        workers=case["workers"],
        replace=case.get("replace", False),
        loader_workers=case.get("loader_workers", 0),
        **({"steps": case["steps"]} if "steps" in case else {"passes": case.get("passes", 5)}),
        seed=3,
        threads=case.get("threads", 1),
        watchdog=case.get("watchdog", 10.0),
        **{name: case[name] for name in OPTIONS if name in case},
    )
    for each in case.get("always", []):
        Path(f"always {each}").touch()
    balance.AGAIN = case.get("again", balance.AGAIN)
    watchdogs.FOUNDING = case.get("founding", watchdogs.FOUNDING)
    if "changes" in case:
        Path("slow").touch()
    if "die" in case:
        Path(f"die in {case['die']}").write_text(case.get("how", ""))
    try:
        model = job.train(Disturber(job, case))
    except JobFailed as error:
        return {**job.report(), "error": str(error)}
    adapter = TorchAdapter(model, make_optimizer(model.parameters()))
    return {**job.report(), "model": digest(adapter.state())}


if __name__ == "__main__":
    moments.install()
    for text in sys.argv[1:]:
        print(json.dumps(run(json.loads(text))), flush=True)
