# SPDX-License-Identifier: Apache-2.0
"""Train with a sharded optimizer, in two or more calls of job.steps; prints the final state's hash.

    ddl elastic run -n 3 sharded.py [--whole] [--leave STEP:MEMBER,...] [--kill STEP:MEMBER,...]
        [--scale STEP:WORKERS,...] [--strike WHAT:MEMBER] [--steps STEPS] [--storm COUNT] [--late]
        [--look] [--look-first] [--checkpoint] [--calls CALLS] [--copies COPIES] [--blocks]

--whole is the same job without shards, and --blocks the job with a block for each layer. Each step
takes a while, so that workers join in time.
With --late, a worker that joins sleeps between the calls until the others have made some steps.
With --look, the program evaluates, reads the state and calls a module after the first step and
between the calls; with --look-first, before each step.
--storm kills COUNT members, one after the other, each in the next one of PHASES.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import ddl_torch.elastic as elastic
from ddl_elastic.sharded.shards import Shards
from ddl_elastic.step.reform import Watch
from ddl_elastic.step.step import Step

STEPS = 60  # of each call, by default
# Methods before which members die, and two places in the program.
PHASES: dict[str, type] = {
    "read" if "--blocks" in sys.argv else "_gather": Shards,
    "compute": object,
    "submit": Watch,
    "_reduce": Step,
    "spread": Shards,
    "gather_squares": Shards,
    "_vote": Step,
    "apply": object,
    "_move": Shards,
    "_settle": Shards,
}
APART = 3  # steps between two kills
UNTIL_NEXT = 5  # steps until the next phase is tried
SCALE = [sys.executable, "-m", "ddl_launch.commands", "elastic", "scale", "sharded"]


def when(flag: str) -> dict[int, list[int]]:
    """Return the members by step."""
    found: dict[int, list[int]] = {}
    for text in sys.argv[sys.argv.index(flag) + 1].split(",") if flag in sys.argv else []:
        step, member = map(int, text.split(":"))
        found.setdefault(step, []).append(member)
    return found


def number_of(flag: str, default: int) -> int:
    return int(sys.argv[sys.argv.index(flag) + 1]) if flag in sys.argv else default


def strike(job: elastic.Job, what: str) -> None:
    """Kill a member while ranges move: "hand over:3" while the state moves to those who stay,
    "join:1" while others receive it, or "barrier:1" soon after they have received it. "loss:2" is
    like "hand over:2", and the member before ends with an error."""
    kind, member = what.split(":")
    send, move, is_joining = Shards._send_replicated, Shards._move, [False]

    def die(shards: Shards) -> None:
        if job.group.member == int(member):
            os.kill(os.getpid(), signal.SIGKILL)

    def sending(shards: Shards, *arguments: Any) -> Any:
        is_joining.append(True)
        if kind == "join":
            die(shards)
        return send(shards, *arguments)

    def moving(shards: Shards, *arguments: Any) -> None:
        if kind in ("hand over", "loss") and shards.keepers is not None:
            if kind == "loss" and job.group.member == int(member) - 1:
                job.group.comm.close()
                raise SystemExit("the program of a worker fails")
            time.sleep(0.5 * (kind == "loss"))  # until that member has left
            die(shards)
        move(shards, *arguments)
        if kind == "barrier" and is_joining[-1]:
            time.sleep(1)  # the others have moved their ranges, too, and wait in the barrier
            die(shards)

    Shards._send_replicated, Shards._move = sending, moving  # type: ignore[method-assign]


def read_step() -> int:
    return int(Path("step").read_text())


class Storm:
    """Kills of members in all phases of a step. The first member that arrives there dies, and
    leaves a file with the step."""

    def __init__(self, job: elastic.Job, count: int) -> None:
        self._job, self._count, self.step = job, count, 0
        for name, kind in PHASES.items():
            if kind is not object:
                setattr(kind, name, self._wrap(name, getattr(kind, name)))

    def _wrap(self, name: str, function: Any) -> Any:
        def called(*arguments: Any) -> Any:
            self.at(name)
            return function(*arguments)

        return called

    def at(self, phase: str) -> None:
        killed = len(list(Path().glob("killed *")))
        last = int(Path(f"killed {killed - 1}").read_text() or self.step) if killed else 0
        is_due = (
            killed < self._count and self.step >= last + APART and self._job.group.comm.size > 2
        )
        # Ranges move only after a join or a death: if none comes, the next phase is taken.
        turn = killed + (self.step - last - APART) // UNTIL_NEXT
        if is_due and phase == [*PHASES][turn % len(PHASES)]:
            with suppress(FileExistsError), open(f"killed {killed}", "x") as file:
                file.write(str(self.step))
                file.flush()
                os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    torch.manual_seed(1)
    data = torch.utils.data.TensorDataset(torch.randn(96, 16), torch.randint(3, (96,)))
    model = nn.Sequential(
        nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 3)
    )
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    job = elastic.Job(
        model,
        optimizer,
        batch=24,
        logical=8,
        bucket_bytes=1000,
        also={"schedule": schedule},
        clip_norm=1.0,
        shard="--whole" not in sys.argv,
        copies=number_of("--copies", 1),
        blocks=model if "--blocks" in sys.argv else (),
        strict=True,
        checkpoint="saved" if "--checkpoint" in sys.argv else None,
        every=10,
    )
    if "--strike" in sys.argv:
        strike(job, sys.argv[sys.argv.index("--strike") + 1])
    leaves, kills, sizes = when("--leave"), when("--kill"), when("--scale")
    calls, steps = number_of("--calls", 2), number_of("--steps", STEPS)
    storm = Storm(job, int(sys.argv[-1])) if "--storm" in sys.argv else None
    is_late = "--late" in sys.argv and Path("step").exists()

    def look(flag: str = "--look") -> None:
        if flag in sys.argv:
            job.map(data, lambda batch: model(batch[0]).sum(), batch=48)
            job.hash()
            job.state()
            model[0](data.tensors[0])

    for number in range(calls):
        if number:
            look()
        if number and is_late:
            begin = read_step()
            while read_step() < begin + 10:
                time.sleep(0.01)
        for step in job.steps(data, steps=steps):
            look("--look-first")
            for x, y in step:
                step.backward(functional.cross_entropy(model(x), y))
                if storm:
                    storm.step = step.number
                    storm.at("compute")
            if storm:
                storm.at("apply")
                time.sleep(0.5 * (job.group.comm.size < 3))  # until others have joined
            optimizer.step()
            schedule.step()
            if not step.number:
                look()
            time.sleep(0.05)
            if job.group.member in leaves.get(step.number, []):
                os.kill(os.getpid(), signal.SIGTERM)
            if job.is_writer and "--late" in sys.argv:
                Path("step.new").write_text(str(step.number))
                Path("step.new").rename("step")
            if job.is_writer and step.number in sizes:
                scale = [*SCALE, str(sizes[step.number][0])]
                subprocess.run(scale, check=True)
            if job.group.member in kills.get(step.number, []):
                os.kill(os.getpid(), signal.SIGKILL)
    found = job.hash()
    if job.is_writer:
        print("final", found)
    job.close()


if __name__ == "__main__":
    main()
