# SPDX-License-Identifier: Apache-2.0
"""`python -m bench unequal`: measures the throughput of elastic workers of unequal speed together.

Each worker is in a control group with a quota of processor time. First each one trains alone, then
all train together, with shares by their measured speed. The ratio is the samples per second
together, divided by the sum of the samples per second alone. Needs writable control groups.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench.cases import UsageError, make_parser
from bench.control_groups import enter, quotas
from ddl_elastic import Job
from ddl_elastic.worker import trainer

LOGICAL = 20
SHARE = 8  # samples of a logical worker
WIDTH = 1024
SETTLED = 25.0  # seconds after which the shares are by speed
MEASURED = 20.0  # seconds


class Samples:
    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((WIDTH,), index / len(self)), torch.tensor(index % 2)


def make_model() -> nn.Module:
    layers = [nn.Linear(WIDTH, WIDTH // 4), nn.ReLU(), nn.Linear(WIDTH // 4, 2)]
    return nn.Sequential(*layers)


def loss(output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Compute for a long time in addition to the loss, so that the messages of a step matter
    little."""
    matrix = torch.full((WIDTH // 2, WIDTH // 2), 1e-3)
    for _ in range(ROUNDS):
        matrix = matrix @ matrix
    return nn.functional.cross_entropy(output, labels) + 0 * matrix[0, 0]


ROUNDS = 4


class Enough(Exception):
    """The end of the measurement."""


class Clock:
    """A callback for the job's reports. Measures the samples per second after some time, and then
    ends the job."""

    def __init__(self, settled: float, measured: float) -> None:
        self._settled, self._until = settled, settled + measured
        self._began: tuple[float, int] | None = None
        self._start: float | None = None
        self.rate, self.counts = 0.0, list[str]()

    def __call__(self, report: dict[str, Any]) -> None:
        now, steps = time.monotonic(), report["steps"]
        self._start = self._start or now
        if now - self._start >= self._settled and self._began is None:
            self._began = now, steps
        if self._began and now - self._start >= self._until:
            seconds, more = now - self._began[0], steps - self._began[1]
            self.rate = more * SHARE * LOGICAL / seconds
            texts = [each["text"] for each in report["events"] if each["kind"] == "balanced"]
            self.counts = [each.partition("on: ")[2] for each in texts]
            raise Enough


def measure(groups: Sequence[Path], settled: float, measured: float) -> Clock:
    work = trainer.work

    def work_there(spec: Any, *arguments: Any) -> None:
        enter(groups[spec.member])
        work(spec, *arguments)

    clock = Clock(settled, measured)
    trainer.work = work_there
    try:
        Job(
            model=make_model,
            data=Samples(),
            loss=loss,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
            batch=SHARE * LOGICAL,
            logical=LOGICAL,
            workers=len(groups),
            replace=False,
            steps=1 << 20,
            progress=False,
        ).train(clock)
    except Enough:
        pass
    finally:
        trainer.work = work
    return clock


def main(argv: Sequence[str]) -> int:
    parser = make_parser("unequal", __doc__)
    parser.add_argument(
        "--cores", default="0.6,0.6,0.3", help="cores of each worker (default: %(default)s)"
    )
    parser.add_argument(
        "--settled",
        type=float,
        default=SETTLED,
        help="seconds before measuring (default: %(default)g)",
    )
    parser.add_argument(
        "--measured", type=float, default=MEASURED, help="seconds measured (default: %(default)g)"
    )
    arguments = parser.parse_args(argv)
    try:
        cores = [float(each) for each in arguments.cores.split(",")]
    except ValueError:
        raise UsageError(f"--cores {arguments.cores}: must be numbers such as 0.6,0.3") from None
    try:
        with quotas(cores) as groups:
            alone = [measure([each], 3.0, arguments.measured).rate for each in groups]
            together = measure(groups, arguments.settled, arguments.measured)
    except OSError as error:
        raise UsageError(f"cannot write control groups: {error}") from None
    print("| cores | samples/s alone | together | ratio | shares |")
    print("|---|---|---|---|---|")
    rates = ", ".join(f"{each:.0f}" for each in alone)
    shares = together.counts[-1] if together.counts else "equal"
    ratio = together.rate / sum(alone)
    print(f"| {arguments.cores} | {rates} | {together.rate:.0f} | {ratio:.2f} | {shares} |")
    return 0
