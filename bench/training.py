# SPDX-License-Identifier: Apache-2.0
"""`python -m bench training`: measures steps per second of real models on several ranks, by
backend.

All backends take turns in one run, and so do the same steps without communication; the order
changes from round to round. So every disturbance of the machine affects all equally.

Every rank of PyTorch runs bench/training_pytorch.py with a Job as JSON. Rank 0 writes a Measured
for each model to Job.result. The other frameworks are in OWN_PROCESSES.
"""

import argparse
import importlib
import json
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from bench.cases import make_parser
from bench.environments import run_ranks
from bench.goals import Verdict
from ddl_launch.base.pictures import LIBRARIES, picture, whole
from ddl_launch.base.quantities import show_seconds

DESCRIPTION = """\
Measure training steps per second by backend, and how much of the communication the computation
hides.

models:
  pytorch     resnet50 and transformer with DistributedDataParallel over each backend; small, a
              tiny transformer for a quick test. The backend private is ddl with DDL_TORCH_SHARED=0
  jax         psum of 8 B to 64 MiB and a transformer, with jax's own collectives over each backend;
              calls, an all-reduce of ddl_jax compared with the bare call of ddl_core
  tensorflow  resnet50 and transformer with ddl_tensorflow and with MultiWorkerMirroredStrategy;
              gradients, the gradients of resnet50 reduced as one group
"""

EPILOG = """\
columns of the tables:
  steps/s, ms       steps per second, and the milliseconds of a step; medians
  90 %              the 90th percentile of the milliseconds
  CPU ms            processor time of one rank per step
  comm ms           the reduction of the gradients by itself
  hidden            the part of the communication that does not lengthen the step
  beside the other  steps per second relative to the best other backend, the median of the rounds
  alone             the row of steps without communication
"""

# The models by framework. "small" is for a quick test and not part of the default.
FRAMEWORKS = {
    "pytorch": ("resnet50", "transformer", "small"),
    "jax": ("psum", "transformer", "calls"),
    "tensorflow": ("resnet50", "transformer", "gradients"),
}
# Frameworks whose backends need separate processes: a module with main(arguments) -> exit code.
OWN_PROCESSES = {"jax": "bench.training_jax", "tensorflow": "bench.training_tensorflow"}
ALONE = "alone"  # steps without communication, except for a barrier at the end
PRIVATE = "private"  # PyTorch: the backend ddl, with buckets that ranks do not share


@dataclass(frozen=True)
class Job:
    """The arguments of every rank."""

    models: list[str]
    backends: list[str]
    rounds: int
    steps: int  # steps of each backend in each round
    device: str
    images: int  # of each rank in a step of resnet50
    pixels: int  # the width and the height of an image
    sequences: int  # of each rank in a step of the transformers
    context: int  # bytes of a sequence
    loaders: int  # forked workers of each rank's data loader; 0: the same batch in each step
    result: str = ""  # the path of the result file


@dataclass(frozen=True)
class Measured:
    """Rank 0's measurements of one model: seconds by backend (and ALONE) and round."""

    model: str
    parameters: int
    buckets: list[int]  # bytes of each group of gradients that is reduced together
    steps: dict[str, list[list[float]]]
    processor: dict[str, list[float]]  # processor time of the process per step, by round
    communication: dict[str, list[list[float]]]  # the reduction of the same buckets by itself


@dataclass(frozen=True)
class Row:
    """One backend's figures for one model. Times are medians, in ms."""

    model: str
    backend: str
    steps_per_second: float
    step: float
    slowest: float  # the 90th percentile
    processor: float  # processor time of one rank per step
    communication: float  # by itself
    hidden: float | None  # the part of the communication that does not lengthen the step
    faster: float | None  # steps per second relative to the best other backend, median of rounds


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = make_parser("training", DESCRIPTION, EPILOG)
    names = partial(str.split, sep=",")
    add = parser.add_argument
    add("--framework", choices=FRAMEWORKS, default="pytorch", help="default: %(default)s")
    add("--models", type=names, help="a list of the models above; default: all but small")
    add("--backends", type=names, default="ddl,gloo", help="a list; default: %(default)s")
    add("--ranks", type=int, default=2, help="number of ranks; default: %(default)s")
    add("--rounds", type=int, default=6, help="turns of each backend; default: %(default)s")
    add("--steps", type=int, default=5, help="training steps in a turn; default: %(default)s")
    add(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="device of PyTorch; all ranks share it",
    )
    add("--images", type=int, default=8, help="images of a rank in a step; default: %(default)s")
    add("--pixels", type=int, default=64, help="width and height of an image; default: %(default)s")
    add("--sequences", type=int, default=4, help="texts of a rank in a step; default: %(default)s")
    add("--context", type=int, default=64, help="bytes of a text; default: %(default)s")
    add(
        "--loaders",
        type=int,
        default=0,
        help="forked workers of a rank's data loader; default: 0, each step has the same batch",
    )
    add("--json", type=Path, metavar="FILE", help="write all samples as JSON")
    add("--plot", type=Path, metavar="FILE.png", help="plot the steps (needs matplotlib)")
    arguments = parser.parse_args(argv)
    models = FRAMEWORKS[arguments.framework]
    arguments.models = arguments.models or [m for m in models if m != "small"]
    for name in arguments.models:
        if name not in models:
            parser.error(f"--models: {name!r} must be one of {', '.join(models)}")
    for name in ("ranks", "rounds", "steps", "images", "pixels", "sequences", "context"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} must be at least 1, not {getattr(arguments, name)}")
    if arguments.loaders and arguments.device != "cpu":
        parser.error("--loaders needs --device cpu: forked processes cannot use CUDA")
    return arguments


def main(argv: Sequence[str]) -> int:
    arguments = parse(argv)
    if arguments.framework in OWN_PROCESSES:
        return int(importlib.import_module(OWN_PROCESSES[arguments.framework]).main(arguments))
    before = os.getloadavg()[0]
    measured = run(arguments)
    machine = {**machine_state(), "load": [before, os.getloadavg()[0]], "ranks": arguments.ranks}
    found = [row for each in measured for row in rows(each)]
    print(table(machine, measured, found))
    if arguments.json:
        report = {
            "machine": machine,
            "rows": [asdict(row) for row in found],
            "samples": [asdict(each) for each in measured],
        }
        arguments.json.write_text(json.dumps(report, indent=1))
    if arguments.plot:
        plot(measured, arguments.plot)
    return 0


def run(arguments: argparse.Namespace) -> list[Measured]:
    job = Job(**{field.name: getattr(arguments, field.name, "") for field in fields(Job)})
    found = run_ranks(arguments.ranks, f"training_{arguments.framework}.py", job)
    return [Measured(**each) for each in found]


def targets() -> list[Verdict]:
    """Return the targets of DistributedDataParallel beside Gloo, without and with data loaders.

    Pictures and texts are so small that communication is a large part of a step over Gloo: a
    quarter to a third of it. Each case names the ratio that sums without any cost would give.
    """
    found = []
    for loaders, least in ((0, 1.3), (2, 1.0)):
        options = "--rounds 20 --images 2 --pixels 16 --sequences 1 --context 16"
        options += f" --loaders {loaders}"
        for measured in run(parse(options.split())):
            step, alone = (statistics.median(flat(measured.steps[row])) for row in ("gloo", ALONE))
            ratio = advantage(measured, "ddl")
            assert ratio is not None
            case = f"DDP, {measured.model}, {loaders} data loaders,"
            case += f" sums without cost {step / alone:.2f}: x Gloo"
            found.append(Verdict(case, "", f"{ratio:.2f}", f"{least:.2f}", ratio >= least))
    return found


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
    """Return the steps per second relative to the best other backend, the median of the rounds."""
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
    with picture(file, [2.6] * len(measured)) as all_axes:
        for axes, each in zip(all_axes, measured, strict=True):
            for backend, rounds in each.steps.items():
                medians = [statistics.median(of) for of in rounds]
                color = LIBRARIES["libddl" if backend == "ddl" else "Gloo"]
                axes.plot(range(1, len(rounds) + 1), medians, "o-", color=color, label=backend)
            axes.set(title=f"{each.model}: time of a step", xlabel="round", ylim=(0, None))
            axes.yaxis.set_major_formatter(lambda seconds, _: show_seconds(seconds))
            whole(axes.xaxis)
