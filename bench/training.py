"""Steps per second of real models on several ranks, by backend.

All backends take turns in one run, in an order that changes from round to round, beside the same
steps without communication; so whatever else happens on the machine meets all alike. What runs
on the ranks is bench/training_FRAMEWORK.py: `python -m bench.training_FRAMEWORK JSON`, with the
fields of a Job, writes a Measured of each model to Job.result on rank 0. JAX has a way of its own
(CONDUCTED).
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# What is measured of each framework; of PyTorch also a small model, if it is asked for, for a try.
FRAMEWORKS = {
    "pytorch": ("resnet50", "transformer", "small"),
    "jax": ("psum", "transformer", "calls"),
    "tensorflow": ("resnet50", "transformer", "gradients"),
}
# Those whose backends need processes of their own: a module with main(arguments) -> exit code.
CONDUCTED = {"jax": "bench.training_jax", "tensorflow": "bench.training_tensorflow"}
ALONE = "alone"  # the steps of each rank by itself, which but wait for each other at the end


@dataclass(frozen=True)
class Job:
    """What every rank is told."""

    models: list[str]
    backends: list[str]
    rounds: int
    steps: int  # of each backend in each round
    result: str  # a file


@dataclass(frozen=True)
class Measured:
    """What rank 0 has seen of one model. Seconds, by backend (and ALONE) and round."""

    model: str
    parameters: int
    buckets: list[int]  # bytes that are reduced together
    steps: dict[str, list[list[float]]]
    processor: dict[str, list[float]]  # of the whole process, for a step, by round
    communication: dict[str, list[list[float]]]  # the same buckets with nothing else to do


@dataclass(frozen=True)
class Row:
    """One backend's figures for one model. Times are medians, in ms."""

    model: str
    backend: str
    steps_per_second: float
    step: float
    slowest: float  # 90 % of the steps take less
    processor: float  # the cores' time for a step of one rank
    communication: float  # alone
    hidden: float | None  # the part of it that does not lengthen the step
    faster: float | None  # its steps per second over the best other backend's: the median round


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench training",
        description="Training steps per second by backend, and how much of the communication is"
        " hidden behind the computation.",
    )
    parser.add_argument("--framework", choices=FRAMEWORKS, default="pytorch")
    names = partial(str.split, sep=",")
    parser.add_argument(
        "--models",
        type=names,
        help="what to measure of the framework; default: all but small of "
        + "; ".join(f"{name}: {','.join(models)}" for name, models in FRAMEWORKS.items()),
    )
    parser.add_argument("--backends", type=names, default="ddl,gloo", help="default: %(default)s")
    parser.add_argument("--ranks", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=6, help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=5, help="in a round; default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples there")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw them (matplotlib)")
    arguments = parser.parse_args(argv)
    models = FRAMEWORKS[arguments.framework]
    arguments.models = arguments.models or [m for m in models if m != "small"]
    for name in arguments.models:
        if name not in models:
            parser.error(f"--models: {name!r} is none of {', '.join(models)}")
    if min(arguments.ranks, arguments.rounds, arguments.steps) < 1:
        parser.error("--ranks, --rounds and --steps are numbers from 1 on")
    return arguments


def main(argv: Sequence[str]) -> int:
    """Measure, print the table; the exit code."""
    arguments = parse(argv)
    if arguments.framework in CONDUCTED:
        return int(importlib.import_module(CONDUCTED[arguments.framework]).main(arguments))
    before = os.getloadavg()[0]
    measured = run(arguments)
    machine = {**machine_state(), "load": [before, os.getloadavg()[0]], "ranks": arguments.ranks}
    found = [row for each in measured for row in rows(each)]
    print(table(machine, measured, found))
    if arguments.json:
        told = {
            "machine": machine,
            "rows": [asdict(row) for row in found],
            "samples": [asdict(each) for each in measured],
        }
        arguments.json.write_text(json.dumps(told, indent=1))
    if arguments.plot:
        plot(measured, arguments.plot)
    return 0


def run(arguments: argparse.Namespace) -> list[Measured]:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        job = Job(
            arguments.models,
            arguments.backends,
            arguments.rounds,
            arguments.steps,
            str(result),
        )
        launcher = [sys.executable, "-m", "ddl_launch", "-n", str(arguments.ranks)]
        program = [sys.executable, str(ROOT / f"bench/training_{arguments.framework}.py")]
        command = [*launcher, *program, json.dumps(asdict(job))]
        # Not in the project's folder, where the sources of ddl_core hide the installed package.
        ended = subprocess.run(command, cwd=folder, check=False)
        if ended.returncode:
            sys.exit(ended.returncode)  # the ranks have said why
        return [Measured(**each) for each in json.loads(result.read_text())]


def machine_state() -> dict[str, Any]:
    names = [
        line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return {
        "processor": names[0].split(": ")[1] if names else platform.machine(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
    }


def rows(measured: Measured) -> list[Row]:
    alone = statistics.median(flat(measured.steps[ALONE]))
    found = []
    for backend, rounds in measured.steps.items():
        steps = flat(rounds)
        step = statistics.median(steps)
        communication, hidden = 0.0, None
        if backend in measured.communication:
            communication = statistics.median(flat(measured.communication[backend]))
            hidden = min(1.0, max(0.0, 1 - (step - alone) / communication))
        found.append(
            Row(
                measured.model,
                backend,
                1 / step,
                1e3 * step,
                1e3 * (statistics.quantiles(steps, n=10)[-1] if len(steps) > 1 else step),
                1e3 * statistics.median(measured.processor[backend]),
                1e3 * communication,
                hidden,
                advantage(measured, backend),
            )
        )
    return found


def advantage(measured: Measured, backend: str) -> float | None:
    """Steps per second over those of the best other backend, in the median round."""
    others = [name for name in measured.communication if name != backend]
    if backend not in measured.communication or not others:
        return None
    medians = {name: list(map(statistics.median, measured.steps[name])) for name in measured.steps}
    best = [min(each) for each in zip(*(medians[name] for name in others), strict=True)]
    return statistics.median(b / own for b, own in zip(best, medians[backend], strict=True))


def flat(rounds: list[list[float]]) -> list[float]:
    return [seconds for each in rounds for seconds in each]


def table(machine: dict[str, Any], measured: list[Measured], found: list[Row]) -> str:
    lines = [
        f"{machine['processor']}, {machine['cores']} cores, {machine['system']},"
        f" load {machine['load'][0]:.1f} before and {machine['load'][1]:.1f} after,"
        f" {machine['ranks']} ranks"
    ]
    for each in measured:
        buckets = ", ".join(f"{size / 2**20:.1f}" for size in each.buckets)
        lines += [
            "",
            f"{each.model}, {each.parameters / 1e6:.1f} M parameters,"
            f" reduced in buckets of {buckets} MiB; medians",
            f"{'':10} {'steps/s':>8} {'ms':>8} {'90 %':>8} {'CPU ms':>8} {'comm ms':>8}"
            f" {'hidden':>7} {'beside the other':>17}",
        ]
        for row in found:
            if row.model == each.model:
                hidden = "" if row.hidden is None else f"{100 * row.hidden:.0f} %"
                faster = "" if row.faster is None else f"{row.faster:.3f} x"
                lines.append(
                    f"{row.backend:10} {row.steps_per_second:8.3f} {row.step:8.1f}"
                    f" {row.slowest:8.1f} {row.processor:8.1f} {row.communication:8.1f}"
                    f" {hidden:>7} {faster:>17}"
                )
    return "\n".join(lines)


def plot(measured: list[Measured], file: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(measured), 4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, each in zip(
        figure.subplots(1, len(measured), squeeze=False)[0], measured, strict=True
    ):
        for backend, rounds in each.steps.items():
            axes.plot([1e3 * statistics.median(of) for of in rounds], marker="o", label=backend)
        axes.set(title=each.model, xlabel="round", ylabel="ms for a step", ylim=(0, None))
        axes.legend()
    figure.savefig(file)
