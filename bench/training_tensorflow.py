"""`python -m bench training --framework tensorflow`: ddl_tensorflow beside TensorFlow's own
MultiWorkerMirroredStrategy.

The same models, weights and batches on the same number of processes. A process has one of the two,
so each has processes of its own (bench/rank/tensorflow_rank.py), which stay alive and take turns;
their weights are compared after the first step. Then what a step's group of gradients costs over
the bare group of ddl_core of the same bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tabulate import tabulate

from bench import training
from bench.environments import ROOT
from bench.libraries import Library, OneHost, Placement, ProcessSpec
from bench.training import Measured
from bench.training_jax import run_steps, turns
from bench.worker_group import WorkerError, WorkerGroup

DOORS = ("ddl", "mirrored")
GRADIENTS = "gradients"
ROUNDING = 1e-3  # what the doors' weights may differ by after the first step, relatively
TIMEOUT = 600.0  # seconds; XLA takes long to compile a model
LEAST = 8  # steps of a turn of the gradients alone


class Door(Library):
    """Ranks with one of DOORS."""

    def process_specs(self, placement: Placement, control: str) -> list[ProcessSpec]:
        specs = super().process_specs(placement, control)
        program = str(ROOT / "bench" / "rank" / "tensorflow_rank.py")
        workers = [f"{placement.address(0)}:{port}" for port in free_ports(len(specs))]
        for rank, spec in enumerate(specs):
            spec.command = [str(self.python), program, self.kind, control]
            task = {"type": "worker", "index": rank}
            spec.env["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
        return specs


@dataclass
class Group:
    """Seconds of steps with the gradients as one group, and without it ("..., alone"), by the way
    of running them; and of the groups, from when all ranks have come, where they can be told."""

    bytes: int
    tensors: int
    seconds: dict[str, list[float]] = field(default_factory=dict)
    groups: dict[str, list[float]] = field(default_factory=dict)


def main(arguments: argparse.Namespace) -> int:
    """Measure, print the tables; the exit code."""
    before = os.getloadavg()[0]
    placement, python = OneHost(arguments.ranks), Path(sys.executable)
    try:
        with ExitStack() as stack:
            doors = {}
            for name in DOORS if set(arguments.models) - {GRADIENTS} else DOORS[:1]:
                doors[name] = WorkerGroup(
                    Door(f"tensorflow-{name}", name, python), placement, TIMEOUT
                )
                stack.callback(doors[name].end)
                doors[name].start()
            models = [
                train(doors, name, arguments.rounds, arguments.steps)
                for name in arguments.models
                if name != GRADIENTS
            ]
            groups = []
            if GRADIENTS in arguments.models:
                groups = [group(doors["ddl"], arguments.rounds, arguments.steps)]
            version = doors["ddl"].version
    except WorkerError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1

    load = [before, os.getloadavg()[0]]
    machine = {**training.machine_state(), "load": load, "ranks": arguments.ranks}
    rows = [row for each in models for row in training.rows(each)]
    print(version)
    print(training.table(machine, models, rows))
    for each in groups:
        print("\n" + table(each))
    if arguments.json:
        samples = [[asdict(each) for each in kind] for kind in (models, groups)]
        told = {"machine": machine, "samples": samples[0], "groups": samples[1]}
        arguments.json.write_text(json.dumps(told, indent=1))
    if arguments.plot and models:
        training.plot(models, arguments.plot)
    return 0


def train(doors: dict[str, WorkerGroup], model: str, rounds: int, steps: int) -> Measured:
    told = {name: each.ask(do="prepare", what=model) for name, each in doors.items()}
    first = told["ddl"][0]
    for name, answers in told.items():
        for answer in answers:
            for own, other in zip(answer["sums"], first["sums"], strict=True):
                if abs(own - other) > ROUNDING * max(other, 1.0):
                    raise WorkerError(f"{name}: sizes of weights add up to {own}, not {other}")
    programs = dict.fromkeys(("ddl", "ddl, jit", "alone", "alone, jit"), "ddl")
    programs["mirrored"] = "mirrored"
    found = Measured(
        model,
        first["parameters"],
        first["buckets"],
        {name: [] for name in programs},
        {name: [] for name in programs},
        {name: [] for name in DOORS},
    )
    for number in range(rounds):
        for name in turns(list(programs), number):
            seconds, processor = run_steps(doors[programs[name]], name, steps)
            found.steps[name].append(seconds)
            found.processor[name].append(processor)
            if name in DOORS:
                found.communication[name].append(run_steps(doors[name], "exchange", steps)[0])
    for workers in doors.values():
        workers.ask(do="release")
    return found


def group(workers: WorkerGroup, rounds: int, steps: int) -> Group:
    told = workers.ask(do="prepare", what=GRADIENTS)[0]
    found = Group(told["bytes"], told["tensors"])
    for _ in range(rounds):
        answers = workers.ask(do="alternate", steps=max(steps, LEAST))
        for kind, all_ in (("seconds", found.seconds), ("groups", found.groups)):
            for name in told["programs"]:
                of_ranks = zip(*(answer[kind][name] for answer in answers), strict=True)
                all_.setdefault(name, []).extend(max(each) for each in of_ranks)
    workers.ask(do="release")
    return found


def table(found: Group) -> str:
    """The group by each way, beside the bare one that was in turn with it (the median of their
    quotients, and that of the fastest), and what a step with it takes longer."""
    bare = found.groups["bare"]
    rows = []
    for name in ("bare", "graph", "jit"):
        row, own = [name], found.groups[name]
        for f in (statistics.median, min):
            row += [f"{1e3 * f(own):.1f}"] if own else [""]
        if own:
            beside = statistics.median(o / b for o, b in zip(own, bare, strict=True))
            row += [f"{100 * (part - 1):+.1f} %" for part in (beside, min(own) / min(bare))]
        else:
            row += ["", ""]
        step, alone = (
            1e3 * statistics.median(found.seconds[each]) for each in (name, f"{name}, alone")
        )
        rows.append([*row, f"{step:.1f}", f"{alone:.1f}", f"{step - alone:.1f}"])
    head = ["ms", "group", "fastest", "over bare", "of fastest", "step", "alone", "more"]
    size = f"{found.bytes / 2**20:.1f} MiB in {found.tensors} tensors"
    return (
        f"The gradients of resnet50, {size}, as one group, when all ranks have come; medians\n"
        + tabulate(rows, head, "github", disable_numparse=True, stralign="right")
    )


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
