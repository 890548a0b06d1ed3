# SPDX-License-Identifier: Apache-2.0
"""`python -m bench slow`: compares the methods of examples/fashion.py on hosts with slow links.

Every rank runs bench/slow_rank.py with a Job as JSON. Rank 0 writes the seconds and the bytes of
each turn to Job.result, with the seconds of the same steps without communication, before and after
the turn.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate
from tqdm import tqdm

from bench.cases import UsageError, make_parser
from bench.environments import ROOT
from bench.plots import check_plot
from bench.training import machine_state
from ddl_launch.base.pictures import logarithmic, picture
from ddl_launch.base.quantities import show_bytes, show_seconds

DESCRIPTION = """\
Train on Fashion-MNIST over slow links, with gradients of fewer bytes and in rounds of local steps.

The hosts are network namespaces of this machine, with a rank each; this needs root. The links have
such rates that the gradients of a step in f32 are sent in 1, 4 and 16 times the time in which the
ranks compute the step. The accuracy does not depend on the rate, so --accuracy measures it apart.
"""

EPILOG = """\
methods:
  f32, bf16, int8, int4  DistributedDataParallel with this wire format
  elastic                steps of an elastic job
  rounds:N, rounds:N:W   rounds of N local steps; W is the wire format of their averages
  alone                  steps without communication, on the same cores

columns of the tables:
  sent         bytes that a host sends in a step
  steps/s      the median of the turns
  ratio        of the time in which the gradients in f32 are sent to that of the computation
  efficiency   steps per second relative to steps without communication, before and after the turn
  difference   from the accuracy of f32 with the same seeds, in points: mean and standard error
"""

ALONE = "alone"
DATA = Path("/usr/share/datasets/fashion-mnist")  # of Debian's package
ROUNDS = "rounds:48:int4"
METHODS = f"f32,bf16,int8,int4,elastic,rounds:48,{ROUNDS}"
TRAINED = f"f32,int8,int4,{ROUNDS}"  # the methods of --accuracy
# Of the links: after a pause, they send as little as possible at once, in packets of this size.
SHAPE, PACKET = "burst 6kb latency 200ms", 3000
LIMIT = 1800.0  # seconds for all methods on a link
RANKS = 2  # of a run that measures the accuracy
# Smallest efficiency by method and ratio, and largest loss of accuracy in points, without the
# standard error.
EFFICIENCY = {("int4", 4.0): 0.6, (ROUNDS, 4.0): 0.95, (ROUNDS, 16.0): 0.9}
LOSS = {"int8": 0.2, "int4": 0.2, ROUNDS: 0.5}

Curve = list[tuple[int, float]]  # steps, and the accuracy after them in percent
Curves = dict[str, dict[str, Curve]]  # by method and seed


@dataclass(frozen=True)
class Job:
    """The arguments of every rank."""

    data: str
    width: int
    methods: list[str]
    turns: int
    steps: int  # steps of each method in a turn; rounds have one round in a turn
    result: str = ""  # the path of the result file


@dataclass(frozen=True)
class Measured:
    """The seconds and the sent bytes of a step by method, and its speed relative to steps without
    communication. All are medians of the turns."""

    hosts: int
    ratio: float  # of the communication in f32 to the computation, as wanted
    rate: float  # bits per second; 0: the links are unshaped
    seconds: dict[str, float]
    bytes: dict[str, float]
    efficiency: dict[str, float]

    @property
    def actual_ratio(self) -> float:
        """The ratio during the turns, in which the cores may have been faster or slower."""
        return 8 * self.bytes["f32"] / (self.rate * self.seconds[ALONE])


def local_steps(method: str) -> int:
    """Return the number of local steps in a round, or 1 if the method has no rounds."""
    return int(method.split(":")[1]) if ":" in method else 1


def wire(method: str) -> str:
    """Return the wire format of a method with rounds."""
    return method.split(":")[2] if method.count(":") == 2 else "f32"


def rate_of(unshaped: Measured, ratio: float) -> float:
    """Return the bits per second at which the gradients in f32 take `ratio` times as long as the
    computation."""
    return 8 * unshaped.bytes["f32"] / (ratio * unshaped.seconds[ALONE])


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = make_parser("slow", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("--data", type=Path, default=DATA, help="folder of the images; default: %(default)s")
    add("--width", type=int, default=16, help="channels of the network; default: %(default)s")
    add("--hosts", default="2,4", help="numbers of hosts; default: %(default)s")
    add("--ratios", default="1,4,16", help="communication to computation; default: %(default)s")
    add("--methods", help=f"default: {METHODS}; with --accuracy: {TRAINED}")
    add("--turns", type=int, default=3, help="turns of each method; default: %(default)s")
    add("--steps", type=int, default=8, help="steps in a turn; default: %(default)s")
    add(
        "--accuracy",
        type=Path,
        metavar="FILE",
        help="measure the accuracy instead, and write it to FILE as JSON. A later call measures"
        " what is missing in FILE",
    )
    add("--seeds", type=int, default=5, help="runs of each method; default: %(default)s")
    add("--epochs", type=int, default=10, help="epochs of a run; default: %(default)s")
    add("--curves", type=Path, metavar="FILE", help="print the accuracy that --accuracy wrote")
    add("--plot", type=Path, metavar="FILE.svg", help="plot the accuracy against the time")
    add("--json", type=Path, metavar="FILE", help="write the speeds as JSON")
    arguments = parser.parse_args(argv)
    try:
        arguments.hosts = [int(each) for each in arguments.hosts.split(",")]
        arguments.ratios = [float(each) for each in arguments.ratios.split(",")]
    except ValueError as error:
        parser.error(f"--hosts and --ratios are lists of numbers: {error}")
    if arguments.plot:
        if not arguments.curves:
            parser.error("--plot needs --curves")
        check_plot(arguments.plot)
    methods = arguments.methods or (TRAINED if arguments.accuracy else METHODS)
    arguments.methods = methods.split(",")
    if not arguments.accuracy and "f32" not in arguments.methods:
        parser.error("--methods needs f32, whose bytes the ratio of a link refers to")
    return arguments


def main(argv: Sequence[str]) -> int:
    arguments = parse(argv)
    if arguments.accuracy:
        print(accuracy_table(train(arguments)))
        return 0
    if os.geteuid() != 0:
        raise UsageError("slow needs root: it creates network namespaces")
    curves = json.loads(arguments.curves.read_text())["curves"] if arguments.curves else {}
    found, load = [], os.getloadavg()[0]
    with tqdm(total=len(arguments.hosts) * (1 + len(arguments.ratios)), unit="link") as bar:
        for hosts in arguments.hosts:
            unshaped = measure(arguments, hosts, ["f32", ALONE])
            bar.update()
            for ratio in arguments.ratios:
                rate = rate_of(unshaped, ratio)
                found.append(measure(arguments, hosts, [*arguments.methods, ALONE], ratio, rate))
                bar.update()
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(each) for each in found], indent=1))
    machine = machine_state()
    print(
        f"{machine['processor']}, {machine['cores']} cores, load {load:.1f} before and"
        f" {os.getloadavg()[0]:.1f} after"
    )
    for hosts in arguments.hosts:
        print("\n" + speed_table([each for each in found if each.hosts == hosts]))
    if curves:
        print("\n" + accuracy_table(curves))
    if arguments.plot:
        plot([each for each in found if each.hosts == arguments.hosts[0]], curves, arguments.plot)
    return 0


def measure(
    arguments: argparse.Namespace,
    hosts: int,
    methods: list[str],
    ratio: float = 0.0,
    rate: float = 0.0,
) -> Measured:
    """Measure the methods on hosts whose links have this rate."""
    from bench.lab import Lab, run

    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        job = Job(
            str(arguments.data.resolve()),
            arguments.width,
            methods,
            arguments.turns,
            arguments.steps,
            str(result),
        )
        program = str(Path(__file__).with_name("slow_rank.py"))
        command = [sys.executable, program, json.dumps(asdict(job))]
        with Lab(hosts, f"{rate:.0f}bit" if rate else None, SHAPE) as lab:
            for host in range(hosts):
                words = f"ip -n {lab.prefix}{host} link set eth0 gso_max_size {PACKET}"
                subprocess.run(words.split(), check=True)
            run(lab, [1] * hosts, command, {"DDL_SECRET": "bench"}, LIMIT)
        turns = json.loads(result.read_text())
    seconds, sent = (
        {method: statistics.median(turn[n] for turn in each) for method, each in turns.items()}
        for n in (0, 1)
    )
    efficiency = {
        method: statistics.median(alone / own for own, _, alone in each)
        for method, each in turns.items()
    }
    return Measured(hosts, ratio, rate, seconds, sent, efficiency)


def train(arguments: argparse.Namespace) -> Curves:
    """Train with each method and seed whose curve the file lacks, and write it to the file."""
    file: Path = arguments.accuracy
    settings = {"epochs": arguments.epochs, "width": arguments.width, "ranks": RANKS}
    found: dict[str, Any] = {**settings, "curves": {}}
    if file.exists():
        found = json.loads(file.read_text())
        if any(found[name] != value for name, value in settings.items()):
            raise UsageError(f"{file} has other settings than {settings}")
    curves: Curves = found["curves"]
    runs = [(str(seed), method) for seed in range(arguments.seeds) for method in arguments.methods]
    for seed, method in tqdm(runs, unit="run"):
        if seed not in curves.setdefault(method, {}):
            curves[method][seed] = train_once(arguments, method, seed)
            file.write_text(json.dumps(found))
    return curves


def train_once(arguments: argparse.Namespace, method: str, seed: str) -> Curve:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "curve.json")
        command = [sys.executable, "-m", "ddl_launch", "-n", str(RANKS)]
        command += [sys.executable, str(ROOT / "examples" / "fashion.py"), "--seed", seed]
        command += ["--method", method.partition(":")[0], "--wire", wire(method)]
        command += ["--local-steps", str(local_steps(method))]
        command += ["--epochs", str(arguments.epochs), "--width", str(arguments.width)]
        command += ["--data", str(arguments.data.resolve()), "--logical", str(RANKS)]
        env = {**os.environ, "DDL_LINKS": "tcp"}  # the ranks count as hosts, which pack their sums
        ended = subprocess.run(
            [*command, "--json", str(file)], cwd=folder, env=env, capture_output=True, text=True
        )
        if ended.returncode:
            raise UsageError(f"{method}, seed {seed}: {ended.stdout[-2000:]}{ended.stderr[-2000:]}")
        curve: Curve = json.loads(file.read_text())
        return curve


def table(rows: list[list[str]], head: list[str]) -> str:
    return tabulate(rows, head, "github", disable_numparse=True)


def speed_table(links: Sequence[Measured]) -> str:
    """Return a table of all methods on the same hosts, with columns for each link."""
    head, rows = ["method", "sent"], []
    for each in links:
        head.append(f"{each.rate / 1e6:.3g} Mbit/s, ratio {each.actual_ratio:.1f}: steps/s")
        head.append("efficiency")
    for method in links[0].seconds:
        row = [method, show_bytes(statistics.median(each.bytes[method] for each in links))]
        for each in links:
            goal = EFFICIENCY.get((method, each.ratio))
            efficiency = f"{100 * each.efficiency[method]:.0f} %"
            row += [f"{1 / each.seconds[method]:.3g}", efficiency + show_goal(goal)]
        rows.append(row)
    return f"{links[0].hosts} hosts\n\n{table(rows, head)}"


def show_goal(goal: float | None) -> str:
    return "" if goal is None else f" (goal: {100 * goal:.0f} %)"


def difference(curves: Mapping[str, Mapping[str, Curve]], method: str) -> tuple[float, float]:
    """Return the mean difference of the last accuracy from f32's with the same seed, in points, and
    its standard error."""
    pairs = [(curve[-1][1], curves["f32"][seed][-1][1]) for seed, curve in curves[method].items()]
    points = [own - f32 for own, f32 in pairs]
    error = statistics.stdev(points) / len(points) ** 0.5 if len(points) > 1 else float("nan")
    return statistics.mean(points), error


def accuracy_table(curves: Curves) -> str:
    """Return a table of the last accuracy, its difference from f32's, and the goal."""
    rows = []
    for method, by_seed in curves.items():
        mean = statistics.mean(curve[-1][1] for curve in by_seed.values())
        row = [method, str(len(by_seed)), f"{mean:.2f} %", "", "", ""]
        if method != "f32":
            points, error = difference(curves, method)
            goal = LOSS.get(method)
            row[3] = f"{points:+.2f} ± {error:.2f}"
            if goal is not None:
                row[4:] = [f"-{goal} - {error:.2f}", "yes" if points >= -goal - error else "no"]
        rows.append(row)
    return table(rows, ["method", "runs", "accuracy", "difference", "goal", "met"])


def plot(links: Sequence[Measured], curves: Curves, file: Path) -> None:
    """Plot the mean accuracy of all seeds against the time, with a panel for each link."""
    with picture(file, [2.6] * len(links)) as all_axes:
        for axes, link in zip(all_axes, links, strict=True):
            for method, by_seed in curves.items():
                if method in link.seconds:
                    points = [*zip(*by_seed.values(), strict=True)]
                    steps = [each[0][0] for each in points]
                    means = [statistics.mean(accuracy for _, accuracy in each) for each in points]
                    seconds = [step * link.seconds[method] for step in steps]
                    axes.plot(seconds, means, "o-", label=method)
            logarithmic(axes.xaxis, show_seconds)
            axes.set_ylabel("accuracy, %")
            rate = f"{link.rate / 1e6:.3g} Mbit/s"
            axes.set_title(f"{link.hosts} hosts, {rate}, ratio {link.ratio:g}")
