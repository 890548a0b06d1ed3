# SPDX-License-Identifier: Apache-2.0
"""`python -m bench training --framework jax`: measures jax's own collectives over libddl, and
ddl_jax.

The first part runs the same programs over libddl and over jaxlib's Gloo: psum of many sizes, and
training steps of a transformer. A jax process has one collectives backend, so each backend has its
own processes (bench/rank/jax_rank.py), which stay alive and take turns. The second part compares a
compiled all-reduce of ddl_jax with the bare call of ddl_core.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from bench import training
from bench.libraries import Library, OneHost
from bench.training import ALONE, Measured
from bench.worker_group import WorkerError, WorkerGroup
from ddl_launch.base.quantities import show_bytes

SIZES = [8, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
BACKENDS = ("ddl", "gloo")  # backends of jax's own collectives
CALLS, SMALL, LARGE = (
    "calls",
    8,
    64 << 20,
)  # the ranks of ddl_jax's operations; their sizes in bytes
TURN = 0.15  # approximate seconds of a turn of small programs
MOST = 2000  # the most steps in a turn
ROUNDING = 1e-3  # largest relative difference between the backends' weights after the warm-up


@dataclass
class Timed:
    """The seconds of one operation on `bytes`. For a psum they are by backend, with the same
    program without communication under ALONE. For an all-reduce they are by the way in which it was
    called."""

    bytes: int
    seconds: dict[str, list[float]]


def main(arguments: argparse.Namespace) -> int:
    for name in arguments.backends:
        if name not in BACKENDS:
            print(
                f"bench: --backends: {name!r} must be one of {', '.join(BACKENDS)}", file=sys.stderr
            )
            return 2
    backends = [*arguments.backends, *([CALLS] if CALLS in arguments.models else [])]
    before = os.getloadavg()[0]
    python, placement = Path(sys.executable), OneHost(arguments.ranks)
    worker_groups = {
        name: WorkerGroup(Library(f"jax-{name}", name, python, program="jax_rank.py"), placement)
        for name in backends
    }
    try:
        for workers in worker_groups.values():
            workers.start()
        found = measure(arguments, worker_groups)
        versions = {workers.version for workers in worker_groups.values()}
    except WorkerError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    finally:
        for workers in worker_groups.values():
            workers.end()

    load = [before, os.getloadavg()[0]]
    machine = {**training.machine_state(), "load": load, "ranks": arguments.ranks}
    print(", ".join(sorted(versions)))
    tables(machine, *found)
    if arguments.json:
        psums, models, calls = ([asdict(each) for each in kind] for kind in found)
        report = {"machine": machine, "psum": psums, "samples": models, "calls": calls}
        arguments.json.write_text(json.dumps(report, indent=1))
    if arguments.plot and found[1]:
        training.plot(found[1], arguments.plot)
    return 0


Found = tuple[list[Timed], list[Measured], list[Timed]]


def measure(arguments: argparse.Namespace, worker_groups: dict[str, WorkerGroup]) -> Found:
    stock = {name: each for name, each in worker_groups.items() if name != CALLS}
    psums, models, calls = [], [], []
    if "psum" in arguments.models:
        psums = [psum(stock, size, arguments.rounds) for size in SIZES]
    if "transformer" in arguments.models:
        models = [transformer(stock, arguments.rounds, arguments.steps)]
    if CALLS in arguments.models:
        calls = [called(worker_groups[CALLS], size, arguments.rounds) for size in (SMALL, LARGE)]
    return psums, models, calls


def psum(backends: dict[str, WorkerGroup], size: int, rounds: int) -> Timed:
    found = Timed(size, {name: [] for name in (*backends, ALONE)})
    paces = {}
    for name, workers in backends.items():
        workers.ask(do="prepare", what="psum", bytes=size)
        paces[name] = pace(workers, "step")
    alone = pace(workers, "alone")
    for number in range(rounds):
        for name in turns([*backends, ALONE], number):
            if name == ALONE:  # any backend will do
                workers = list(backends.values())[number % len(backends)]
                found.seconds[name] += run_steps(workers, "alone", alone)[0]
            else:
                found.seconds[name] += run_steps(backends[name], "step", paces[name])[0]
    release(backends)
    return found


def transformer(backends: dict[str, WorkerGroup], rounds: int, steps: int) -> Measured:
    info = {name: each.ask(do="prepare", what="transformer")[0] for name, each in backends.items()}
    first = next(iter(info.values()))
    for name, each in info.items():
        for own, other in zip(each["sums"], first["sums"], strict=True):
            if abs(own - other) > ROUNDING * other:
                raise WorkerError(f"{name}: weights differ: their sizes add up to {own}, {other}")
    found = Measured(
        "transformer",
        first["parameters"],
        first["buckets"],
        {name: [] for name in (*backends, ALONE)},
        {name: [] for name in (*backends, ALONE)},
        {name: [] for name in backends},
    )
    for number in range(rounds):
        for name in turns([*backends, ALONE], number):
            workers = backends.get(name) or list(backends.values())[number % len(backends)]
            program = "alone" if name == ALONE else "step"
            seconds, processor = run_steps(workers, program, steps)
            found.steps[name].append(seconds)
            found.processor[name].append(processor)
            if name != ALONE:
                found.communication[name].append(run_steps(workers, "exchange", steps)[0])
    release(backends)
    return found


def called(workers: WorkerGroup, size: int, rounds: int) -> Timed:
    (ways, *_) = workers.ask(do="prepare", what="allreduce", bytes=size)
    paces = {way: pace(workers, way) for way in ways["ways"]}
    found = Timed(size, {way: [] for way in paces})
    for number in range(rounds):
        for way in turns(list(paces), number):
            found.seconds[way] += run_steps(workers, way, paces[way])[0]
    release({CALLS: workers})
    return found


def turns(names: list[str], number: int) -> list[str]:
    first = number % len(names)
    return names[first:] + names[:first]


def release(backends: dict[str, WorkerGroup]) -> None:
    for workers in backends.values():
        workers.ask(do="release")


def run_steps(workers: WorkerGroup, program: str, steps: int) -> tuple[list[float], float]:
    answers = workers.ask(do="run", program=program, steps=steps)
    seconds = [max(of_ranks) for of_ranks in zip(*(a["seconds"] for a in answers), strict=True)]
    return seconds, max(answer["processor"] for answer in answers)


def pace(workers: WorkerGroup, program: str) -> int:
    seconds, _ = run_steps(workers, program, 5)
    return max(3, min(int(TURN / statistics.median(seconds)), MOST))


# ---- the printed tables ----


def tables(
    machine: dict[str, Any], psums: list[Timed], models: list[Measured], calls: list[Timed]
) -> None:
    rows = [row for each in models for row in training.rows(each)]
    print(training.table(machine, models, rows))
    if psums:
        backends = [name for name in psums[0].seconds if name != ALONE]
        head = [
            "psum",
            *backends,
            "alone",
            *(["times", "without alone"] if len(backends) == 2 else []),
        ]
        print("\n" + show(head, [psum_row(each, backends) for each in psums]))
        print(
            "\nMedian, and fastest in brackets. `times` is the ratio of the medians,"
            " `without alone` the ratio after subtracting the median of `alone`."
        )
    for each in calls:
        head = [show_bytes(each.bytes), "in place", "over the bare", "fresh", "over the bare"]
        print("\n" + show(head, call_rows(each)))


def psum_row(each: Timed, backends: Sequence[str]) -> list[str]:
    medians = {name: statistics.median(seconds) for name, seconds in each.seconds.items()}
    row = [show_bytes(each.bytes), *(both(each.seconds[name]) for name in (*backends, ALONE))]
    if len(backends) == 2:
        ours, other = (medians[name] for name in backends)
        net = ours - medians[ALONE], other - medians[ALONE]
        row += [f"{other / ours:.2f} x", f"{net[1] / net[0]:.1f} x" if net[0] > 0 else "all"]
    return row


def call_rows(each: Timed) -> list[list[str]]:
    """Return a row for each way to call, in place and into fresh memory. The difference from the
    bare call is in microseconds for the small size, and in percent for the large one."""
    rows = []
    for way in dict.fromkeys(name.rpartition(", ")[0] for name in each.seconds):
        row = [way]
        for memory in ("in place", "fresh"):
            own, bare = each.seconds[f"{way}, {memory}"], each.seconds[f"bare, {memory}"]
            more = statistics.median(own) - statistics.median(bare)
            if each.bytes == SMALL:
                shown = f"{1e6 * more:.0f} ({1e6 * (min(own) - min(bare)):.0f}) us"
            else:
                shown = f"{100 * more / statistics.median(bare):+.0f} %"
            row += [both(own), "" if way == "bare" else shown]
        rows.append(row)
    return rows


def both(seconds: Sequence[float]) -> str:
    unit, scale = ("ms", 1e3) if statistics.median(seconds) > 2e-3 else ("us", 1e6)
    digits = 1 if unit == "ms" or min(seconds) < 1e-4 else 0
    median, fastest = scale * statistics.median(seconds), scale * min(seconds)
    return f"{median:.{digits}f} ({fastest:.{digits}f}) {unit}"


def show(head: list[str], rows: list[list[str]]) -> str:
    return tabulate(rows, head, "github", disable_numparse=True, stralign="right")
