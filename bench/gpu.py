# SPDX-License-Identifier: Apache-2.0
"""`python -m bench gpu`: measures all-reduces of tensors on one GPU that all ranks share.

Every rank runs bench/gpu_rank.py with a GpuJob as JSON. Rank 0 writes the medians to GpuJob.result.
All ways take turns, so that every disturbance affects all of them equally.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from bench.cases import make_parser, parse_sizes
from bench.environments import run_ranks
from ddl_launch.base.quantities import show_bytes, show_seconds

DESCRIPTION = """\
Measure all-reduces (f32, sum) of PyTorch's tensors on a GPU that all ranks of this host share.

ddl      torch.distributed with "cuda:ddl", in the stream, through host memory
gloo     torch.distributed with "cuda:gloo"
by hand  a copy to pinned memory, ddl_core's all-reduce there, and a copy back
nccl     rank 0 alone, since NCCL does not support several ranks on one GPU: a lower bound
copies   all ranks copy as many bytes to pinned memory and back at the same time: a limit for host
         memory
device   each rank copies as many bytes on the GPU
"""

EPILOG = """\
Times are medians over the turns, on the slowest rank, from the call until the tensor has the
result. GB/s is the bytes of one rank's tensor divided by the time.
"""

WAYS = ("ddl", "gloo", "by hand", "nccl", "copies", "device")
SIZES = "8,4KiB,64KiB,1MiB,4MiB,16MiB,64MiB,256MiB,1GiB"


@dataclass(frozen=True)
class GpuJob:
    """The arguments of every rank."""

    device: str
    ways: list[str]
    sizes: list[int]
    seconds: float  # seconds for each size and way
    result: str = ""  # the path of the result file


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = make_parser("gpu", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("--ranks", type=int, default=2, help="number of ranks; default: %(default)s")
    add("--sizes", type=parse_sizes, default=SIZES, help="sizes of a tensor; default: %(default)s")
    add(
        "--ways",
        type=lambda text: text.split(","),
        default=",".join(WAYS),
        help="a list of the above",
    )
    add(
        "--seconds",
        type=float,
        default=0.5,
        help="seconds for each size and way; default: %(default)s",
    )
    add("--device", choices=("cuda", "cpu"), default="cuda", help="cpu only tests the program")
    add("--json", type=Path, metavar="FILE", help="write the medians, in seconds")
    arguments = parser.parse_args(argv)
    unknown = set(arguments.ways) - set(WAYS)
    if unknown:
        parser.error(f"--ways: {min(unknown)!r} must be one of {', '.join(WAYS)}")
    return arguments


def main(argv: Sequence[str]) -> int:
    arguments = parse(argv)
    job = GpuJob(arguments.device, arguments.ways, arguments.sizes, arguments.seconds)
    report = run_ranks(arguments.ranks, "gpu_rank.py", job)
    print(f"{report['gpu']}, {arguments.ranks} ranks, medians\n")
    print(table(report["medians"]))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1))
    return 0


def table(medians: dict[str, dict[str, float]]) -> str:
    """Return a table with a row for each size: the time of each way, and libddl's share of the
    limits."""
    ways = [way for way in WAYS if any(way in times for times in medians.values())]
    rows = []
    for size, times in medians.items():
        cells = [show_bytes(int(size))]
        cells += [show_seconds(times[way]) if way in times else "" for way in ways]
        own = times.get("ddl")
        cells.append(f"{int(size) / own / 1e9:.3g}" if own else "")
        for limit in ("copies", "device"):
            cells.append(f"{100 * times[limit] / own:.0f} %" if own and limit in times else "")
        rows.append(cells)
    head = ["size", *ways, "ddl GB/s", "of copies", "of device"]
    return tabulate(
        rows, head, tablefmt="github", disable_numparse=True, colalign=["right"] * len(head)
    )
