# SPDX-License-Identifier: Apache-2.0
"""`ddl simulate --jobs`: simulates many jobs on one cluster, under several schedulers."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from ddl_launch.base.quantities import parse_count
from ddl_launch.commands.plots import check_plot
from ddl_launch.commands.tables import show
from ddl_launch.errors import CommandError
from ddl_scheduler.simulation import plots
from ddl_scheduler.simulation.comparison import compare, comparison_rows, slots_make
from ddl_scheduler.simulation.methods import methods_all
from ddl_scheduler.simulation.traces import GENERATED, WorkloadError, workload_read
from ddl_scheduler.simulation.workloads import TEST_SEEDS


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """Add the options about jobs to the parser of `ddl simulate`."""
    jobs = parser.add_argument_group("many jobs, without CLUSTER.toml")
    jobs.add_argument(
        "--jobs",
        metavar="TRACE",
        help="compare schedulers on a workload: AdaptDL's or the Philly trace, both csv, or"
        f" {GENERATED!r}; the page 'Many jobs on one cluster' explains the table",
    )
    jobs.add_argument(
        "--slots",
        metavar="HOSTSxN",
        type=_slots,
        default="16x4",
        help="hosts and slots on each (default: 16x4)",
    )
    jobs.add_argument(
        "--seeds",
        metavar="S,...",
        type=_seeds,
        default=",".join(map(str, TEST_SEEDS)),
        help="random seeds; one workload is generated, or sampled from the trace, for each"
        " (default: %(default)s)",
    )
    jobs.add_argument(
        "--count",
        metavar="N",
        type=parse_count,
        default=160,
        help="number of jobs to generate or sample (default: 160)",
    )
    jobs.add_argument(
        "--load",
        metavar="X",
        type=_load,
        default=1.0,
        help="factor for the work of each job (default: 1)",
    )
    other = parser.get_default("run")

    def run(arguments: argparse.Namespace) -> int | None:
        if arguments.jobs:
            _run(arguments)
            return None
        code: int | None = other(arguments)
        return code

    parser.set_defaults(run=run)


def _run(arguments: argparse.Namespace) -> None:
    if arguments.plot:
        check_plot(arguments.plot)
    hosts, each = arguments.slots
    slots = slots_make(hosts, each)
    try:
        workloads = [
            workload_read(arguments.jobs, seed, arguments.count, arguments.load)
            for seed in arguments.seeds
        ]
    except WorkloadError as error:
        raise CommandError(f"--jobs {error}") from None
    results = compare(workloads, slots, methods_all(slots))
    work = sum(job.work for jobs in workloads for job in jobs) / len(workloads) / 3600
    print(
        f"{len(slots)} slots on {hosts} hosts; {len(workloads[0])} jobs of {work:.0f} slot-hours;"
        f" means of {len(workloads)} workloads\n"
    )
    print(show(comparison_rows(results)))
    if arguments.plot:
        plots.plot(Path(arguments.plot), results, len(slots))


def _slots(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,4})x(\d{1,3})", text)
    if not match or not int(match[1]) * int(match[2]):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of hosts and of slots on each, such as 16x4"
        )
    return int(match[1]), int(match[2])


def _seeds(text: str) -> list[int]:
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of integers such as 1,2,3")
    return [int(seed) for seed in text.split(",")]


def _load(text: str) -> float:
    try:
        load = float(text)
    except ValueError:
        load = 0.0
    if not 0 < load < 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0, such as 2")
    return load
