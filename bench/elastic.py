# SPDX-License-Identifier: Apache-2.0
"""`python -m bench elastic`: measures the cost of a step of elastic training. See
elastic_rank.py."""

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.cases import make_parser
from bench.environments import run_ranks

DESCRIPTION = """\
Measure what a step of elastic training with PyTorch costs.

2 ranks  a logical worker each, compared with DistributedDataParallel over libddl and over Gloo
1 rank   8 logical workers, compared with the accumulation of 8 gradients

The models are transformers whose steps take about 20 and 100 ms. All read the same samples.
"""

EPILOG = """\
The columns are the median time of a step, the median of the paired ratios of elastic to the other
backend with its 95 % interval, and the additional processor time of an elastic step.
"""


@dataclass(frozen=True)
class Job:
    """The arguments of every rank."""

    width: int  # the transformer's width
    layers: int
    share: int  # samples of a logical worker
    logical: int
    pairs: int  # turns of each backend
    steps: int  # steps in a turn
    result: str = ""  # the path of the result file


@dataclass(frozen=True)
class Measured:
    """The measurements of rank 0, by backend and turn: seconds of a step, and of the process's
    processor time."""

    parameters: int
    seconds: dict[str, list[float]]
    processor: dict[str, list[float]]


# By name: the model, the ranks, and the steps of a turn.
MODELS = {"20 ms": (160, 2, 8, 5), "100 ms": (320, 4, 10, 2)}
LOGICAL_ALONE = 8


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = make_parser("elastic", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("--pairs", type=int, default=41, help="turns of each backend (default: %(default)s)")
    add(
        "--ranks",
        type=int,
        default=2,
        help="ranks with DistributedDataParallel (default: %(default)s)",
    )
    add("--json", type=Path, metavar="FILE", help="write all samples as JSON")
    arguments = parser.parse_args(argv)
    if arguments.pairs < 6 or arguments.ranks < 2:
        parser.error("--pairs must be at least 6, and --ranks at least 2")
    return arguments


def main(argv: Sequence[str]) -> int:
    arguments = parse(argv)
    lines = [
        "| step | ranks | logical | beside | elastic | the other | ratio | 95 % | processor |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    samples = {}
    for name, (width, layers, share, steps) in MODELS.items():
        for ranks in (arguments.ranks, 1):
            logical = ranks if ranks > 1 else LOGICAL_ALONE
            turn = steps if ranks > 1 else max(1, steps * 2 // logical)
            found = run(ranks, width, layers, share, logical, arguments.pairs, turn)
            samples[f"{name}, {ranks} ranks"] = asdict(found)
            lines += rows(name, ranks, logical, found)
    print("\n".join(lines))
    if arguments.json:
        arguments.json.write_text(json.dumps(samples, indent=1))
    return 0


def run(
    ranks: int, width: int, layers: int, share: int, logical: int, pairs: int, steps: int
) -> Measured:
    job = Job(width, layers, share, logical, pairs, steps)
    return Measured(**run_ranks(ranks, "elastic_rank.py", job))


def rows(name: str, ranks: int, logical: int, found: Measured) -> list[str]:
    lines = []
    own, processor = found.seconds["elastic"], statistics.median(found.processor["elastic"])
    for other, seconds in found.seconds.items():
        if other == "elastic":
            continue
        ratios = [a / b for a, b in zip(own, seconds, strict=True)]
        low, high = median_interval(ratios)
        more = 1e3 * (processor - statistics.median(found.processor[other]))
        lines.append(
            f"| {name} | {ranks} | {logical} | {other} | {1e3 * statistics.median(own):.1f} ms"
            f" | {1e3 * statistics.median(seconds):.1f} ms | {statistics.median(ratios):.3f}"
            f" | {low:.3f} to {high:.3f} | {more:+.2f} ms |"
        )
    return lines


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the order statistics between which the median lies with a probability of at least 95
    %."""
    ordered, n = sorted(values), len(values)
    below, tail = 0, 0.5**n
    while tail + math.comb(n, below + 1) * 0.5**n <= 0.025:
        below += 1
        tail += math.comb(n, below) * 0.5**n
    return ordered[below], ordered[n - 1 - below]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
