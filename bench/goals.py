# SPDX-License-Identifier: Apache-2.0
"""libddl's performance targets, as ratios of times measured in turns in one run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.cases import Candidate
from bench.libraries import OneHost
from bench.machine import ALL_STATES, STATES
from bench.results import Result, Row
from ddl_launch.base.quantities import show_bytes

KI, MI = 2**10, 2**20
EVEN = 0.97  # a difference below 3 % is noise
OURS = ("libddl", "ddl_torch")


@dataclass(frozen=True)
class Verdict:
    """One row of the table of targets."""

    case: str
    state: str
    measured: str
    target: str
    met: bool


@dataclass(frozen=True)
class Target:
    """A performance target. `of(result, state)` must be at least `least` for every result that
    `where` selects and every state, unless it is None."""

    what: str
    of: Callable[[Result, str], float | None]
    least: float
    where: Callable[[Result], bool]
    states: tuple[str, ...] = ALL_STATES
    percent: bool = False

    def verdicts(self, results: Sequence[Result]) -> list[Verdict]:
        found = []
        for r in results:
            for state in r.often() if self.where(r) else ():
                value = self.of(r, state) if state in self.states else None
                if value is not None:
                    state_shown = state + " *" * r.busy
                    name = f"{r.case.operation} {r.case.dtype} {show_bytes(r.case.bytes)}"
                    where = f", {r.ranks} ranks, {r.placement}: {self.what}"
                    shown, least = self._show(value), self._show(self.least)
                    met = value >= self.least
                    found.append(Verdict(name + where, state_shown, shown, least, met))
        return found

    def _show(self, value: float) -> str:
        return f"{100 * value:.0f} %" if self.percent else f"{value:.2f}"


def _own(result: Result, state: str, way: str = "") -> Row | None:
    return result.row(Candidate("libddl", way), state)


def against_best(way: str = "", others: str | None = None) -> Callable[[Result, str], float | None]:
    """Return a function for the speed relative to the fastest other library called this way, or as
    in `others`."""

    def ratio(result: Result, state: str) -> float | None:
        own = _own(result, state, way)
        return result.against_others(own, OURS, way if others is None else others) if own else None

    return ratio


def against(
    library: str, way: str = "", own: str = "libddl"
) -> Callable[[Result, str], float | None]:
    def ratio(result: Result, state: str) -> float | None:
        ours, other = (result.row(Candidate(name, way), state) for name in (own, library))
        return ours.times_as_fast_as(other) if ours and other else None

    return ratio


def loops_against(library: str) -> Callable[[Result, str], float | None]:
    """Return a function for the rate of busy loops beside waiting ranks, relative to their rate
    beside those of another library."""

    def ratio(result: Result, state: str) -> float | None:
        own, other = _own(result, state, "late"), result.row(Candidate(library, "late"), state)
        return own.loops / other.loops if own and other else None

    return ratio


def ordered_against_apart(result: Result, state: str) -> float | None:
    """Return the speed of an ordered sum relative to a plain out-of-place sum."""
    own, plain = _own(result, state, "ordered"), _own(result, state, "apart")
    return own.times_as_fast_as(plain) if own and plain else None


def against_blocking(way: str) -> Callable[[Result, str], float | None]:
    """Return a function for the speed relative to libddl's blocking call."""

    def ratio(result: Result, state: str) -> float | None:
        own, blocking = _own(result, state, way), _own(result, state)
        return own.times_as_fast_as(blocking) if own and blocking else None

    return ratio


def of_limit(way: str = "") -> Callable[[Result, str], float | None]:
    def part(result: Result, state: str) -> float | None:
        own = _own(result, state, way)
        return result.of_limit(own) if own else None

    return part


def _is(operation: str, dtype: str, ranks: int, *sizes: int) -> Callable[[Result], bool]:
    return lambda r: (
        (r.case.operation, r.case.dtype, r.ranks) == (operation, dtype, ranks)
        and r.case.bytes in sizes
        and r.placement == OneHost(0).name
    )


def _between_hosts(*sizes: int) -> Callable[[Result], bool]:
    return lambda r: not r.placement.startswith(OneHost(0).name) and r.case.bytes in sizes


def _beside(loops: int, *sizes: int) -> Callable[[Result], bool]:
    return lambda r: r.placement == OneHost(0, loops).name and r.case.bytes in sizes


def _among(ranks: int) -> Callable[[Result], bool]:
    return lambda r: r.ranks == ranks and r.placement == OneHost(0).name


SMALL = (8, 64, 256, KI, 2 * KI)
MIDDLE = (4 * KI, 16 * KI, 64 * KI, 256 * KI, 512 * KI)
LARGE = (MI, 4 * MI, 16 * MI)
HUGE = (64 * MI, 256 * MI)
MOVES = ("broadcast", "allgather", "alltoall")
FOUR = (KI, 64 * KI, MI, 4 * MI, 64 * MI)
SHARED_CACHED = (256 * KI, MI, 4 * MI, 16 * MI)
SHARED_FOUR = (MI, 4 * MI, 64 * MI)
ORDERED = (KI, 64 * KI, MI, 16 * MI, 64 * MI)
LOOPS = (2, 4, 8)
TAKEN_SMALL = (8, KI, 4 * KI)
TAKEN_LARGE = (16 * KI, 256 * KI, 4 * MI)
# The sizes of the public table of the backends of torch.distributed.
EIGHT = (64, 4 * KI, 256 * KI, 4 * MI, 64 * MI, 100_000_000)
EIGHT_MOVES = ("allreduce", "allgather", "broadcast")


def all_targets() -> list[Target]:
    """Return the targets for operations."""
    f32 = ("allreduce", "f32", 2)
    huge, large = _is(*f32, *HUGE), _is(*f32, *LARGE)
    small = _is(*f32, *SMALL)
    whole = _is(*f32, *SMALL, *MIDDLE, *LARGE, *HUGE)
    near = ("near",)
    best = against_best()
    targets = [
        Target("x best other", best, 3.5, huge),
        Target("of the limit", of_limit(), 0.7, _is(*f32, 64 * MI), near, percent=True),
        Target("of the limit", of_limit(), 0.8, _is(*f32, 256 * MI), near, percent=True),
        Target("x best other", best, 1.3, large),
        Target("x best other", best, EVEN, _is(*f32, *(s for s in MIDDLE if s < 256 * KI))),
        Target("x best other", best, 1.2, _is(*f32, *(s for s in MIDDLE if s >= 256 * KI))),
        Target("x best other, from C", against_best("c"), EVEN, small),
        Target("x best other", best, 1 / 1.5, small),
        Target("async x blocking", against_blocking("async"), 1 / 1.5, whole),
        Target("named x blocking", against_blocking("named"), 1 / 3, whole),
        Target("x best other", best, 2.5, _is("reduce_scatter", "f32", 2, 64 * MI)),
    ]
    ordered = ordered_against_apart
    targets.append(Target("ordered x out of place", ordered, 0.95, lambda r: True))
    for dtype in ("bf16", "f16"):
        targets.append(Target("x Gloo", against("gloo"), 5, _is("allreduce", dtype, 2, 64 * MI)))
    for operation in MOVES:
        where = _is(operation, "f32", 2, 64 * MI)
        targets.append(Target("x best other", best, EVEN, where))
        targets.append(Target("of memcpy", of_limit(), 0.8, where, percent=True))
    four = ("allreduce", "f32", 4)
    targets += [
        Target("x best other", best, EVEN, _is(*four, *(s for s in FOUR if s < 64 * MI))),
        Target("x best other", best, 2, _is(*four, *(s for s in FOUR if s >= 64 * MI))),
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


def taken_targets() -> list[Target]:
    """Return the targets beside busy loops."""
    targets = []
    spins, yields = against("openmpi", "c"), against("openmpi_yield", "c")
    gloo = against("gloo", own="ddl_torch")
    for loops in LOOPS:
        small, large = _beside(loops, *TAKEN_SMALL), _beside(loops, *TAKEN_LARGE)
        targets += [
            Target("x Open MPI that spins, from C", spins, 0.8, small),
            Target("x Open MPI that spins, from C", spins, 1.0, large),
        ]
        waiting = loops_against("openmpi_yield")
        targets.append(Target("busy loops' rate beside a waiting rank", waiting, 0.95, small))
        for where in (small, large):
            targets.append(Target("x Open MPI that yields, from C", yields, 1.0, where))
            targets.append(Target("through PyTorch, x Gloo", gloo, 2.5, where))
    return targets


def many_targets() -> list[Target]:
    """Return the targets for bursts, and for more ranks than cores."""
    burst = Target("bursts x best other", against_best("burst"), 1 / 1.3, _among(4))
    targets = [burst, Target("x best other", against_best(), EVEN, _among(8))]
    for library in ("gloo", "commux"):
        ratio = against(library, own="ddl_torch")
        targets.append(Target(f"through PyTorch, x {library}", ratio, EVEN, _among(8)))
    return targets


def shared_targets() -> list[Target]:
    """Return the targets for operations on buffers of ddl_alloc. Other libraries use their own
    buffers."""
    two, four, near = ("allreduce", "f32", 2), ("allreduce", "f32", 4), ("near",)
    best, limit = against_best("shared", others=""), of_limit("shared")
    cached, large = _is(*two, *SHARED_CACHED), _is(*two, *HUGE)
    targets = [
        Target("shared, of the limit", limit, 0.7, cached, percent=True),
        Target("shared, of the limit", limit, 0.9, large, near, percent=True),
        Target("shared, of the limit", limit, 0.7, large, ("twin", "far"), percent=True),
        Target("shared, x best other", best, 2, _is(*four, *SHARED_FOUR)),
    ]
    for least, sizes in ((2.8, (MI,)), (3, (4 * MI, 16 * MI)), (4.5, (64 * MI,))):
        targets.append(Target("shared, x best other", best, least, _is(*two, *sizes), near))
    for operation in MOVES:
        moves = _is(operation, "f32", 2, 64 * MI)
        targets.append(Target("shared, of memcpy", limit, 0.95, moves, percent=True))
    return targets


def same_rate(results: Sequence[Result]) -> list[Verdict]:
    """Check that f16 and bf16 move as many bytes per second as f32, within 20 %."""
    found = []
    whole = {r.case.dtype: r for r in results if _is("allreduce", r.case.dtype, 2, 64 * MI)(r)}
    for dtype in ("bf16", "f16"):
        for state in STATES:
            rows = [_own(whole[d], state) if d in whole else None for d in (dtype, "f32")]
            if rows[0] and rows[1]:
                ratio = rows[1].p50 / rows[0].p50
                case = f"allreduce {dtype} 64 MiB, 2 ranks, one host: bytes/s x f32's"
                found.append(Verdict(case, state, f"{ratio:.2f}", "0.80", ratio >= 0.8))
    return found
