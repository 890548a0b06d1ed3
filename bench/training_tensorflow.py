# SPDX-License-Identifier: Apache-2.0
"""`python -m bench training --framework tensorflow`: measures ddl_tensorflow, and TensorFlow's own
MultiWorkerMirroredStrategy.

Both train the same models with the same weights and batches on the same number of processes. A
process can use one of the two, so each has its own processes (bench/rank/tensorflow_rank.py), which
stay alive and take turns. Their weights are compared after the first step. A second part measures
the cost of the group of gradients in a step compared with the bare group of ddl_core with the same
bytes.
"""

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
from bench.libraries import Library, OneHost, Placement, ProcessSpec
from bench.training import Measured
from bench.training_jax import run_steps, turns
from bench.worker_group import WorkerError, WorkerGroup

BACKENDS = ("ddl", "mirrored")
GRADIENTS = "gradients"
ROUNDING = 1e-3  # largest relative difference of weights after the first step
TIMEOUT = 600.0  # seconds; XLA takes long to compile a model
LEAST = 8  # fewest steps in a turn of the gradients alone


class BackendLibrary(Library):
    def process_specs(self, placement: Placement, control: str) -> list[ProcessSpec]:
        specs = super().process_specs(placement, control)
        workers = [f"{placement.address(0)}:{port}" for port in free_ports(len(specs))]
        for rank, spec in enumerate(specs):
            task = {"type": "worker", "index": rank}
            spec.env["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
        return specs


@dataclass
class Group:
    """The gradients of a model reduced as one group, by the way of running the step.

    `seconds` has the times of complete steps, also without the reduction ("..., alone"). `groups`
    has the times of the reduction since all ranks have arrived, if it can be timed.
    """

    bytes: int
    tensors: int
    seconds: dict[str, list[float]] = field(default_factory=dict)
    groups: dict[str, list[float]] = field(default_factory=dict)


def main(arguments: argparse.Namespace) -> int:
    before = os.getloadavg()[0]
    placement, python = OneHost(arguments.ranks), Path(sys.executable)
    try:
        with ExitStack() as stack:
            backends = {}
            for name in BACKENDS if set(arguments.models) - {GRADIENTS} else BACKENDS[:1]:
                backends[name] = WorkerGroup(
                    BackendLibrary(
                        f"tensorflow-{name}", name, python, program="tensorflow_rank.py"
                    ),
                    placement,
                    TIMEOUT,
                )
                stack.callback(backends[name].end)
                backends[name].start()
            models = [
                train(backends, name, arguments.rounds, arguments.steps)
                for name in arguments.models
                if name != GRADIENTS
            ]
            groups = []
            if GRADIENTS in arguments.models:
                groups = [group(backends["ddl"], arguments.rounds, arguments.steps)]
            version = backends["ddl"].version
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
        report = {"machine": machine, "samples": samples[0], "groups": samples[1]}
        arguments.json.write_text(json.dumps(report, indent=1))
    if arguments.plot and models:
        training.plot(models, arguments.plot)
    return 0


def train(backends: dict[str, WorkerGroup], model: str, rounds: int, steps: int) -> Measured:
    info = {name: each.ask(do="prepare", what=model) for name, each in backends.items()}
    first = info["ddl"][0]
    for name, answers in info.items():
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
        {name: [] for name in BACKENDS},
    )
    for number in range(rounds):
        for name in turns(list(programs), number):
            seconds, processor = run_steps(backends[programs[name]], name, steps)
            found.steps[name].append(seconds)
            found.processor[name].append(processor)
            if name in BACKENDS:
                found.communication[name].append(run_steps(backends[name], "exchange", steps)[0])
    for workers in backends.values():
        workers.ask(do="release")
    return found


def group(workers: WorkerGroup, rounds: int, steps: int) -> Group:
    info = workers.ask(do="prepare", what=GRADIENTS)[0]
    found = Group(info["bytes"], info["tensors"])
    for _ in range(rounds):
        answers = workers.ask(do="alternate", steps=max(steps, LEAST))
        for kind, all_ in (("seconds", found.seconds), ("groups", found.groups)):
            for name in info["programs"]:
                of_ranks = zip(*(answer[kind][name] for answer in answers), strict=True)
                all_.setdefault(name, []).extend(max(each) for each in of_ranks)
    workers.ask(do="release")
    return found


def table(found: Group) -> str:
    """Return a table with a row for each way: the reduction, its ratio to the bare one of the same
    turn (median, and of the fastest), and the time that it adds to a step."""
    bare = found.groups["bare"]
    rows = []
    for name in ("bare", "graph", "jit"):
        row, own = [name], found.groups[name]
        for f in (statistics.median, min):
            row += [f"{1e3 * f(own):.1f}"] if own else [""]
        if own:
            ratio = statistics.median(o / b for o, b in zip(own, bare, strict=True))
            row += [f"{100 * (part - 1):+.1f} %" for part in (ratio, min(own) / min(bare))]
        else:
            row += ["", ""]
        step, alone = (
            1e3 * statistics.median(found.seconds[each]) for each in (name, f"{name}, alone")
        )
        rows.append([*row, f"{step:.1f}", f"{alone:.1f}", f"{step - alone:.1f}"])
    head = ["ms", "group", "fastest", "over bare", "of fastest", "step", "alone", "more"]
    size = f"{found.bytes / 2**20:.1f} MiB in {found.tensors} tensors"
    return (
        f"The gradients of resnet50, {size}, as one group, since all ranks have arrived; medians\n"
        + tabulate(rows, head, "github", disable_numparse=True, stralign="right")
    )


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
