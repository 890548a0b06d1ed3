"""`python -m bench targets`: what libddl is to reach, beside what was measured, in one go."""

from __future__ import annotations

import argparse
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from bench import environments
from bench.cases import Case, Contestant, UsageError, show_bytes
from bench.collectives import measure
from bench.libraries import Library, find
from bench.machine import Machine
from bench.results import Result, Row
from bench.tables import show_results

DESCRIPTION = """\
Measure what libddl's targets speak of, and say which are met; near and far cores apart.

Ratios compare medians that were taken in turns in one run: above 1, libddl is faster. The exit code
is 1 when a target is not met.
"""

KI, MI = 2**10, 2**20
EVEN = 1.0
OURS = ("libddl",)


@dataclass(frozen=True)
class Verdict:
    """One line of the table."""

    case: str
    state: str
    measured: str
    target: str
    met: bool


@dataclass(frozen=True)
class Target:
    """For every size: `of(result, state)` must be at least `least`, where it is not None."""

    what: str
    of: Callable[[Result, str], float | None]
    least: float
    where: Callable[[Result], bool]
    states: tuple[str, ...] = ("near", "far")
    percent: bool = False

    def verdicts(self, results: Sequence[Result]) -> list[Verdict]:
        """Of the results that the target is about."""
        found = []
        for r in results:
            for state in r.states() if self.where(r) else ():
                value = self.of(r, state) if state in self.states else None
                if value is not None:
                    name = f"{r.case.operation} {r.case.dtype} {show_bytes(r.case.bytes)}"
                    where = f", {r.ranks} ranks, {r.scene}: {self.what}"
                    shown, least = self._show(value), self._show(self.least)
                    met = value >= self.least
                    found.append(Verdict(name + where, state, shown, least, met))
        return found

    def _show(self, value: float) -> str:
        return f"{100 * value:.0f} %" if self.percent else f"{value:.2f}"


def _own(result: Result, state: str, way: str = "") -> Row | None:
    return result.row(Contestant("libddl", way), state)


def against_best(way: str = "") -> Callable[[Result, str], float | None]:
    """How many times as fast as the best peer called this way."""

    def ratio(result: Result, state: str) -> float | None:
        own, peer = _own(result, state, way), result.best_peer(state, OURS, way)
        return peer.p50 / own.p50 if own and peer else None

    return ratio


def against(library: str) -> Callable[[Result, str], float | None]:
    """How many times as fast as this one."""

    def ratio(result: Result, state: str) -> float | None:
        own, peer = _own(result, state), result.row(Contestant(library), state)
        return peer.p50 / own.p50 if own and peer else None

    return ratio


def against_blocking(way: str) -> Callable[[Result, str], float | None]:
    """How many times as fast as the own blocking call."""

    def ratio(result: Result, state: str) -> float | None:
        own, blocking = _own(result, state, way), _own(result, state)
        return blocking.p50 / own.p50 if own and blocking else None

    return ratio


def of_limit(result: Result, state: str) -> float | None:
    """The part of the limit that is reached."""
    own, limit = _own(result, state), result.limit.get(state)
    return limit / own.p50 if own and limit else None


def _is(operation: str, dtype: str, ranks: int, *sizes: int) -> Callable[[Result], bool]:
    return lambda r: (
        (r.case.operation, r.case.dtype, r.ranks) == (operation, dtype, ranks)
        and r.case.bytes in sizes
        and r.scene == "one host"
    )


def _between_hosts(*sizes: int) -> Callable[[Result], bool]:
    return lambda r: r.scene != "one host" and r.case.bytes in sizes


SMALL = (8, 64, 256, KI, 2 * KI)
MIDDLE = (4 * KI, 16 * KI, 64 * KI, 256 * KI, 512 * KI)
LARGE = (MI, 4 * MI, 16 * MI)
HUGE = (64 * MI, 256 * MI)
MOVES = ("broadcast", "allgather", "alltoall")
FOUR = (KI, 64 * KI, MI, 4 * MI, 64 * MI)


def _targets() -> list[Target]:
    f32 = ("allreduce", "f32", 2)
    huge, large = _is(*f32, *HUGE), _is(*f32, *LARGE)
    small, middle = _is(*f32, *SMALL), _is(*f32, *MIDDLE)
    whole = _is(*f32, *SMALL, *MIDDLE, *LARGE, *HUGE)
    near = ("near",)
    best = against_best()
    targets = [
        Target("x best peer", best, 3.5, huge),
        Target("of the limit", of_limit, 0.7, _is(*f32, 64 * MI), near, percent=True),
        Target("of the limit", of_limit, 0.8, _is(*f32, 256 * MI), near, percent=True),
        Target("x best peer", best, 1.3, large),
        Target("x best peer", best, EVEN, middle),
        Target("x best peer, from C", against_best("c"), EVEN, small),
        Target("x best peer", best, 1 / 1.5, small),
        Target("async x blocking", against_blocking("async"), 1 / 1.5, whole),
        Target("named x blocking", against_blocking("named"), 1 / 3, whole),
        Target("x best peer", best, 2.5, _is("reduce_scatter", "f32", 2, 64 * MI)),
    ]
    for dtype in ("bf16", "f16"):
        targets.append(Target("x Gloo", against("gloo"), 5, _is("allreduce", dtype, 2, 64 * MI)))
    for operation in MOVES:
        where = _is(operation, "f32", 2, 64 * MI)
        targets.append(Target("x best peer", best, EVEN, where))
        targets.append(Target("of memcpy", of_limit, 0.8, where, percent=True))
    four = ("allreduce", "f32", 4)
    targets += [
        Target("x best peer", best, EVEN, _is(*four, *(s for s in FOUR if s < 64 * MI))),
        Target("x best peer", best, 2, _is(*four, *(s for s in FOUR if s >= 64 * MI))),
    ]
    for library in ("gloo", "openmpi"):
        ratio = against(library)
        small_least = 20 if library == "gloo" else EVEN
        targets += [
            Target(f"x {library}", ratio, 2, _between_hosts(16 * MI, 64 * MI)),
            Target(f"x {library}", ratio, 4, _between_hosts(MI)),
            Target(f"x {library}", ratio, small_least, _between_hosts(KI)),
        ]
    return targets


def same_rate(results: Sequence[Result]) -> list[Verdict]:
    """f16 and bf16 are to move as many bytes per second as f32, within 20 %."""
    found = []
    whole = {r.case.dtype: r for r in results if _is("allreduce", r.case.dtype, 2, 64 * MI)(r)}
    for dtype in ("bf16", "f16"):
        for state in ("near", "far"):
            rows = [_own(whole[d], state) if d in whole else None for d in (dtype, "f32")]
            if rows[0] and rows[1]:
                ratio = rows[1].p50 / rows[0].p50
                case = f"allreduce {dtype} 64 MiB, 2 ranks, one host: bytes/s x f32's"
                found.append(Verdict(case, state, f"{ratio:.2f}", "0.80", ratio >= 0.8))
    return found


def resources(library: Library) -> list[Verdict]:
    """Memory and time to start, by resources.c."""
    program = environments.compile_program("resources", library.python)

    def ask(*arguments: str) -> float:
        command = [str(program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise UsageError(f"{' '.join(command)}: {done.stderr.strip()}")
        return float(done.stdout)

    def line(case: str, value: float, least: float, unit: str, scale: float) -> Verdict:
        shown = f"{value / scale:.3g} {unit}"
        return Verdict(case, "", shown, f"{least / scale:.3g} {unit}", value <= least)

    return [
        line("memory of a rank, 8 ranks", ask("memory", "8"), 32 * MI, "MiB", MI),
        line("growth over 1 000 000 operations", ask("flat", "1000000"), MI // 8, "MiB", MI),
        line("create, 8 ranks, from the last entry on", ask("create", "8"), 0.05, "ms", 1e-3),
        line("spawn to first all-reduce, 8 ranks", ask("spawn", "8"), 0.3, "ms", 1e-3),
    ]


@dataclass(frozen=True)
class Part:
    """Cases that are measured together."""

    name: str
    cases: tuple[Case, ...]
    ranks: int = 2
    ways: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ("libddl", "gloo", "openmpi", "mpich", "impi")
    lab: str = ""


def _cases(operation: str, dtype: str, sizes: Sequence[int]) -> tuple[Case, ...]:
    return tuple(Case(operation, dtype, size) for size in sizes)


PARTS = (
    Part("small", _cases("allreduce", "f32", SMALL), ways=("c", "async", "named")),
    Part("middle", _cases("allreduce", "f32", MIDDLE), ways=("async", "named")),
    Part("large", _cases("allreduce", "f32", LARGE), ways=("async", "named")),
    Part("huge", _cases("allreduce", "f32", HUGE), ways=("async", "named")),
    Part(
        "halves",
        tuple(Case("allreduce", d, 64 * MI) for d in ("f32", "bf16", "f16")),
        libraries=("libddl", "gloo"),
    ),
    Part("moves", tuple(Case(o, "f32", 64 * MI) for o in ("reduce_scatter", *MOVES))),
    Part("four", _cases("allreduce", "f32", FOUR), ranks=4),
    Part(
        "hosts",
        _cases("allreduce", "f32", (KI, MI, 16 * MI, 64 * MI)),
        libraries=("libddl", "gloo", "openmpi"),
        lab="unshaped",
    ),
    Part("resources", ()),
)


def main(argv: Sequence[str]) -> int:
    """Run the command; the exit code, 1 when a target is not met."""
    options = _parse(argv)
    machine = Machine(environments.cache_folder())
    parts = [p for p in PARTS if p.name in options.parts]
    names = dict.fromkeys(n for p in parts for n in (p.libraries if p.cases else ("libddl",)))
    libraries = {
        n: find(n, options.libddl if n == "libddl" else None, from_c=n != "gloo") for n in names
    }
    results: list[Result] = []
    verdicts: list[Verdict] = []
    notes: list[str] = []
    deadline = time.monotonic() + options.limit
    for part in parts:
        if not part.cases:
            verdicts += resources(libraries["libddl"])
            continue
        left = max(deadline - time.monotonic(), 0.0)
        settings = argparse.Namespace(
            cases=part.cases,
            ranks=[part.ranks],
            ways=part.ways,
            lab=part.lab,
            hosts=[1, 1],
            rounds=options.rounds,
            seconds=options.seconds,
            limit=left,
            busy=options.busy,
        )
        try:
            got, said = measure(settings, machine, [libraries[n] for n in part.libraries])
        except UsageError as error:
            got, said = [], [str(error)]
        results += got
        notes += said
    if options.tables:
        print(show_results(results, OURS) + "\n")
    verdicts = [v for t in _targets() for v in t.verdicts(results)] + same_rate(results) + verdicts
    print(show_verdicts(verdicts))
    for note in dict.fromkeys(notes):
        print(note)
    return 0 if all(v.met for v in verdicts) else 1


def show_verdicts(verdicts: Sequence[Verdict]) -> str:
    """The table."""
    head = ["case", "cores", "measured", "target", "met"]
    rows = [[v.case, v.state, v.measured, v.target, "yes" if v.met else "NO"] for v in verdicts]
    table = tabulate(rows, head, "github", disable_numparse=True)
    met = sum(v.met for v in verdicts)
    return f"{table}\n\n{met} of {len(verdicts)} targets met"


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench targets",
        description=DESCRIPTION,
        epilog="Training has a command of its own. For figures that are worth something let nothing"
        " else run on the machine.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    known = [part.name for part in PARTS]
    add("--parts", default=",".join(known), help=f"of {','.join(known)} (default: all)")
    add(
        "--libddl",
        metavar="PYTHON",
        type=Path,
        help="an interpreter that has ddl_core, instead of building this tree",
    )
    add("--rounds", type=int, default=3, help="turns of each library (default: 3)")
    add("--seconds", type=float, default=0.12, help="of a turn, at least (default: 0.12)")
    add("--limit", type=float, default=900, help="seconds after which no case is begun (900)")
    add("--busy", action="store_true", help="count turns although something else ran meanwhile")
    add("--tables", action="store_true", help="print the tables of all that was measured, too")
    options = parser.parse_args(argv)
    options.parts = options.parts.split(",")
    for name in options.parts:
        if name not in known:
            parser.error(f"--parts: {name!r} is none of {', '.join(known)}")
    if options.libddl:
        options.libddl = options.libddl.absolute()
    return options
