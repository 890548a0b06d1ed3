# SPDX-License-Identifier: Apache-2.0
"""The benchmarks: their numbers, their output, and a small run of libddl alone."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))  # after all others: the sources of ddl_core must not be found there
try:
    from bench import creation, goals, slow
    from bench.cases import Candidate, Case, UsageError, parse_sizes
    from bench.collectives import parse
    from bench.libraries import Library, OneHost
    from bench.machine import Machine, State
    from bench.plots import panels
    from bench.results import LIMIT, Result, Row, Turn, quantile, summarize
    from bench.tables import show_results
    from bench.worker_group import WorkerError, WorkerGroup
    from ddl_launch.base.quantities import show_bytes
finally:
    sys.path.remove(str(ROOT))

TAKEN = State(0.0, 0.0, taken=True)
NEAR, FAR = State(0.06e-6, 20e9), State(1.0e-6, 1e9)
BUSY = State(0.06e-6, 20e9, others=2)
DDL, GLOO, MPICH = Candidate("libddl"), Candidate("gloo"), Candidate("mpich")
CASE = Case("allreduce", "f32", 1 << 20)


def turns(*given: tuple[Candidate, float, State, State]) -> list[Turn]:
    return [Turn(c, [s, s, 10 * s], before, after) for c, s, before, after in given]


def test_turns_that_changed_state_are_dropped() -> None:
    result = summarize(
        CASE,
        "one host",
        2,
        turns((DDL, 1.0, NEAR, NEAR), (DDL, 5.0, NEAR, FAR), (DDL, 7.0, FAR, FAR)),
    )
    assert result.changed == 1
    assert [(r.state, r.p50, r.p99, r.turns) for r in result.rows] == [
        ("near", 1.0, 10.0, 1),
        ("far", 7.0, 70.0, 1),
    ]


def test_disturbed_turns_count_only_where_there_are_no_others() -> None:
    given = turns((DDL, 1.0, BUSY, BUSY), (DDL, 2.0, NEAR, BUSY))
    quiet = summarize(CASE, "one host", 2, given)
    assert (quiet.busy, quiet.disturbed, quiet.rows[0].p50) == (False, 1, 2.0)
    busy = summarize(CASE, "one host", 2, [*given, *turns((GLOO, 3.0, BUSY, BUSY))])
    assert (busy.busy, busy.disturbed, busy.rows[0].best) == (True, 0, 1.0)
    assert "| 1 MiB * |" in show_results([busy], {"libddl"})


def test_beside_busy_loops_the_mean_of_the_turns_counts() -> None:
    """A median would hide the calls during which a rank did not run."""
    result = summarize(CASE, "", 2, turns((DDL, 1.0, TAKEN, TAKEN), (DDL, 2.0, TAKEN, TAKEN)))
    (row,) = result.rows
    assert (row.state, row.p50, row.rounds) == ("taken", 6.0, {0: 6.0})


def test_the_limit_is_the_better_of_both_kinds_of_stores() -> None:
    plain, streaming = Candidate(LIMIT, "plain"), Candidate(LIMIT, "streaming")
    result = summarize(
        CASE, "one host", 2, turns((plain, 3.0, NEAR, NEAR), (streaming, 2.0, NEAR, NEAR))
    )
    assert result.limit == {"near": 2.0}
    assert result.rows == []


def test_ratios_are_those_to_the_best_other_of_the_same_state() -> None:
    result = summarize(
        CASE,
        "one host",
        2,
        turns(
            (DDL, 1e-3, NEAR, NEAR),
            (GLOO, 4e-3, NEAR, NEAR),
            (MPICH, 2e-3, NEAR, NEAR),
            (MPICH, 1e-3, FAR, FAR),
        ),
    )
    assert result.against_others(result.rows[0], {"libddl"}) == 2.0
    assert result.against_others(result.rows[0], {"libddl"}, "c") is None
    assert goals.against_best("shared", others="")(result, "near") is None
    shared = turns((Candidate("libddl", "shared"), 1e-3, NEAR, NEAR), (GLOO, 3e-3, NEAR, NEAR))
    assert (
        goals.against_best("shared", others="")(summarize(CASE, "one host", 2, shared), "near")
        == 3.0
    )
    text = show_results([result], {"libddl"})
    row = next(line for line in text.splitlines() if "libddl" in line)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    # 1 MiB in 1 ms, of which each of two ranks sends 2 (n - 1) / n = 1
    assert cells == ["1 MiB", "libddl", "1 ms", "10 ms", "1.05", "1.05", "2.00", "", "3"]
    assert "cores far" in text


def test_ratios_are_taken_round_by_round() -> None:
    """The machine becomes half as fast in most turns of one library, and in few of the other's."""
    paces = [(1.0, 1.0), (2.0, 2.0), (1.0, 1.0), (2.0, 1.0), (2.0, 2.0)]
    given = [
        Turn(who, [pace * seconds] * 5, NEAR, NEAR, number)
        for number, both in enumerate(paces)
        for who, pace, seconds in ((DDL, both[0], 1e-3), (GLOO, both[1], 3e-3))
    ]
    result = summarize(CASE, "one host", 2, given)
    own, other = result.rows
    assert other.p50 / own.p50 == pytest.approx(1.5)
    assert result.against_others(own, {"libddl"}) == pytest.approx(3.0)
    limit = [
        Turn(Candidate(LIMIT, way), [0.5e-3 * n * paces[n][0]], NEAR, NEAR, n)
        for n in range(5)
        for way in ("plain", "streaming")
    ]
    result = summarize(CASE, "one host", 2, [*given, *limit])
    assert result.of_limit(result.rows[0]) == pytest.approx(1.0)


def test_states_seldom_seen_are_not_judged() -> None:
    given = [Turn(DDL, [1.0], NEAR, NEAR, n) for n in range(4)] + turns((DDL, 9.0, FAR, FAR))
    result = summarize(CASE, "one host", 2, given)
    assert result.states() == ["near", "far"] and result.often() == ["near"]


def test_a_core_lent_to_others_is_told() -> None:
    half = State(0.06e-6, 20e9, pace=2e-4)
    whole = State(0.06e-6, 20e9, pace=1e-4)
    result = summarize(CASE, "one host", 2, turns((DDL, 1.0, whole, half), (DDL, 2.0, half, half)))
    assert result.slowed == 0.5
    assert "before up to 50 % of a case's turns" in show_results([result], {"libddl"})


def test_a_target_is_met_or_not() -> None:
    result = Result(Case("allreduce", "f32", 64 << 20), "one host", 2)
    for candidate, seconds in ((DDL, 10e-3), (GLOO, 36e-3)):
        row = Row(candidate, "near", seconds, seconds, seconds, 3, 30, {0: seconds})
        result.rows.append(row)
    result.limit = {"near": 6e-3}
    verdicts = [v for t in goals.all_targets() for v in t.verdicts([result])]
    assert {(v.measured, v.target, v.met) for v in verdicts} == {
        ("3.60", "3.50", True),
        ("60 %", "70 %", False),
    }


def test_a_picture_has_the_states_in_which_all_were_seen_at_several_sizes() -> None:
    def seen(nbytes: int, *rows: tuple[Candidate, str]) -> Result:
        result = Result(Case("allreduce", "f32", nbytes), "one host", 2)
        result.rows = [Row(c, state, 1e-3, 1e-3, 1e-3, 3, 30) for c, state in rows]
        return result

    by_c = Candidate("libddl", "c")
    small = seen(8, (DDL, "near"), (GLOO, "near"), (by_c, "near"), (GLOO, "twin"), (DDL, "twin"))
    large = seen(1 << 20, (DDL, "near"), (GLOO, "near"), (GLOO, "twin"))
    near, twin = (f"allreduce f32, 2 ranks, one host, {state}" for state in ("near", "twin"))
    assert panels([small, large]) == {near: [(small, "near"), (large, "near")]}
    assert set(panels([small])) == {near, twin}


def test_quantiles() -> None:
    values = list(range(1, 101))
    assert [quantile(values, q) for q in (0.0, 0.5, 0.99, 1.0)] == [1, 50, 99, 100]


def test_sizes() -> None:
    assert parse_sizes("4KiB,8") == [8, 4096]
    assert parse_sizes("1KiB-64KiB") == [1024, 4096, 16384, 65536]
    for wrong in ("", "1 mile", "8-4", "0"):
        with pytest.raises(UsageError, match="is not a"):
            parse_sizes(wrong)
    assert [show_bytes(n) for n in (8, 4096, 3 << 19)] == ["8 B", "4 KiB", "1.5 MiB"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--operations", "allreduse"], "'allreduse' must be one of allreduce"),
        (["--dtypes", "f33"], "'f33' must be one of"),
        (["--ranks", "two"], "--ranks 'two' is not a list of numbers"),
        (["--hosts", "2,2"], "--hosts requires --lab"),
        (["--json", "/nowhere/at/all.json"], "the folder /nowhere/at does not exist"),
        (["--rounds", "0"], "--rounds must be at least 1"),
    ],
)
def test_a_wrong_command_line_is_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_the_direct_reduction_and_the_state_can_be_measured(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    state = machine.state()
    if machine.cores > 1:
        assert 0 < state.round_trip < 1e-3
        assert state.dirty_rate > 1e6
    assert 1e-6 < state.pace < 1
    for operation in ("allreduce", "reduce_scatter", "allgather", "broadcast", "alltoall"):
        for dtype in ("f32", "bf16"):
            seconds = machine.direct(Case(operation, dtype, 100_000), 2, True, 3)
            assert len(seconds) == 3
            assert min(seconds) > 0


def rank_data() -> Any:
    """Return bench/rank/data.py, which ranks import from their own folder."""
    spec = importlib.util.spec_from_file_location("rank_data", ROOT / "bench" / "rank" / "data.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def combine(operation: str, ranks: Sequence[Any]) -> None:
    """Run the operation for all ranks, on int32 elements."""
    sends = [r.send.view(np.int32).copy() for r in ranks]
    for own in ranks:
        block = slice(own.rank * own.block, (own.rank + 1) * own.block)
        results = {
            "allreduce": lambda: sum(sends),
            "reduce_scatter": lambda block=block: sum(sends)[block],
            "allgather": lambda: np.concatenate(sends),
            "broadcast": lambda: sends[0],
            "alltoall": lambda block=block: np.concatenate([s[block] for s in sends]),
        }
        own.recv.view(np.int32)[:] = results[operation]()


@pytest.mark.parametrize(
    "operation", ["allreduce", "reduce_scatter", "allgather", "broadcast", "alltoall"]
)
@pytest.mark.parametrize("nbytes", [12, 800_000])
def test_wrong_results_are_noticed(operation: str, nbytes: int) -> None:
    ranks = [rank_data().Data(operation, "int32", nbytes, rank, 3) for rank in range(3)]
    for own in ranks:
        own.rewrite()
    with pytest.raises(AssertionError, match=f"{operation} gave a wrong result: rank 1, element"):
        ranks[1].check()  # nothing has been done yet
    combine(operation, ranks)
    for own in ranks:
        own.check()
        own.recv[len(own.recv) // 2] ^= 1
        with pytest.raises(AssertionError, match=f"rank {own.rank}, element {len(own.recv) // 2}"):
            own.check()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BENCH_CACHE", str(tmp_path))
    return tmp_path


def test_a_library_that_does_not_start_says_why(cache: Path) -> None:
    workers = WorkerGroup(Library("broken", "no_such_module", Path(sys.executable)), OneHost(2))
    with pytest.raises(WorkerError, match=r"(?s)broken did not start.*No module named"):
        workers.start()
    workers.end()
    assert not workers.alive


def test_a_rank_that_dies_is_noticed(cache: Path) -> None:
    workers = WorkerGroup(Library("libddl", "ddl", Path(sys.executable)), OneHost(2))
    try:
        workers.start()
        workers.ask(do="prepare", operation="allreduce", dtype="float32", bytes=1024)
        seconds, wall = workers.run("", 3, 2)
        assert len(seconds) == 3
        assert sum(seconds) <= wall
        with pytest.raises(WorkerError, match="libddl: TypeError"):
            workers.ask(do="run", nonsense=True)
        assert workers.alive
        workers._processes[1].kill()
        with pytest.raises(WorkerError, match="libddl d"):
            workers.run("", 1, 1)
        assert not workers.alive
    finally:
        workers.end()


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_libddl_alone_runs_checks_and_reports(tmp_path: Path) -> None:
    report = tmp_path / "run.json"
    options = ["--operations", "allreduce,alltoall,barrier", "--sizes", "8,100000"]
    options += ["--busy", "0,1", "--async", "--named", "--from-c", "--shared"]
    effort = ["--rounds", "1", "--seconds", "0.01", "--disturbed"]
    who = ["--libraries", "libddl", "--libddl", sys.executable]
    picture = tmp_path / "run.png"
    done = bench(
        "collectives", *who, *options, *effort, "--json", str(report), "--plot", str(picture)
    )
    assert done.returncode == 0, done.stderr
    assert "allreduce f32, 2 ranks, one host, cores" in done.stdout
    assert "barrier f32, 2 ranks, one host, busy loops: 1, cores taken" in done.stdout
    results = json.loads(report.read_text())["results"]
    ways = {
        (r["operation"], r["bytes"]): {row["way"] for row in r["rows"]}
        for r in results
        if r["changed"] == 0
    }
    everything = {"", "async", "named", "shared", "shared apart"}
    for key, found in ways.items():
        assert found == everything | ({"c"} if key[0] == "allreduce" else set())
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_what_there_is_is_told() -> None:
    done = bench("--help")
    assert done.returncode == 0
    assert "collectives" in done.stdout and "targets" in done.stdout
    assert bench("unknown").returncode == 2


@pytest.mark.parametrize("command", ["resize", "unequal"])
def test_the_installed_packages_are_measured(command: str) -> None:
    """The ranks do not import the sources in the folder in which the command is called."""
    pytest.importorskip("torch")
    done = bench(command, "--help")
    assert done.returncode == 0, done.stderr


def test_the_parts_of_a_pause() -> None:
    """Each part is compared with its usual time; the time that no part explains is the rest."""
    pytest.importorskip("torch")
    sys.path.append(str(ROOT))
    try:
        from bench.resize import measure
        from bench.resize_phases import COPY, CREATION, SUMS, Span
    finally:
        sys.path.remove(str(ROOT))
    times = {step: float(step) for step in range(30)} | {step: step + 0.5 for step in range(30, 40)}
    sums = [Span(SUMS, at - 0.3, at - 0.1) for at in times.values()]
    others = [Span(CREATION, 27.0, 29.0), Span(COPY, 29.1, 29.2), Span(SUMS, 29.2, 29.3)]
    change = measure(times, [*sums, *others], 30, "joined")
    assert change.pause == pytest.approx(0.5)
    expected = {"creation": 2.0, "switch": 0.0, "copy": 0.1, "sums": 0.1, "vote": 0.0, "rest": 0.3}
    assert change.parts == pytest.approx(expected)


def test_pauses_of_two_jobs_after_each_other() -> None:
    """Each part of the second job's steps is written into its own folder."""
    pytest.importorskip("torch")
    done = bench("resize", "--workers=1:2,1:2", "--megabytes=0.1", "--rounds=1")
    assert done.returncode == 0, done.stderr
    # A job that begins with two workers first becomes smaller, which counts, too.
    assert len(re.findall(r"\| 2 to 1 \| 0 MB \| [12] \|", done.stdout)) == 2, done.stdout


@pytest.mark.parametrize("wrong", ["--ranks=1", "--times=0", "--what=merge"])
def test_creation_of_nothing_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError):
        creation.parse([wrong])


def test_creation_with_another_build() -> None:
    options = creation.parse(["--ranks", "2,4", "--libddl", "before=/old/bin/python"])
    assert options.ranks == [2, 4]
    assert options.others == [("before", "/old/bin/python")]


def measured(ratio: float, rate: float = 1e7, **seconds: float) -> slow.Measured:
    efficiency = {method: seconds["alone"] / each for method, each in seconds.items()}
    sent = dict.fromkeys(seconds, 300 * 1024.0)
    return slow.Measured(2, ratio, rate, seconds, sent, efficiency)


def test_slow_links_have_the_rate_of_the_ratio() -> None:
    """300 KiB take 4 times as long as a step of 50 ms."""
    assert slow.rate_of(measured(0, f32=0.06, alone=0.05), 4) == 8 * 300 * 1024 / 0.2


def test_efficiency_is_relative_to_steps_without_communication() -> None:
    found = measured(4, **{"f32": 0.25, slow.ROUNDS: 0.0625, "alone": 0.05})
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in slow.speed_table([found]).splitlines()
        if line.startswith("|")
    ]
    assert rows[0] == ["method", "sent", "10 Mbit/s, ratio 4.9: steps/s", "efficiency"]
    assert rows[2:] == [
        ["f32", "300 KiB", "4", "20 %"],
        [slow.ROUNDS, "300 KiB", "16", "80 % (goal: 95 %)"],
        ["alone", "300 KiB", "20", "100 %"],
    ]


def test_methods_on_slow_links_need_f32(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        slow.parse(["--methods", "int4"])
    assert "--methods needs f32" in capsys.readouterr().err


def test_differences_of_accuracy_are_taken_seed_by_seed() -> None:
    curves = {
        "f32": {"0": [(234, 80.0), (468, 90.0)], "1": [(234, 81.0), (468, 92.0)]},
        "int8": {"1": [(234, 81.0), (468, 91.8)], "0": [(234, 81.0), (468, 90.0)]},
        slow.ROUNDS: {"0": [(240, 80.0), (480, 89.0)], "1": [(240, 81.0), (480, 90.8)]},
    }
    assert slow.difference(curves, "int8") == (pytest.approx(-0.1), pytest.approx(0.1))
    rows = [line.split() for line in slow.accuracy_table(curves).replace("|", "").splitlines()[2:]]
    assert rows == [
        ["f32", "2", "91.00", "%"],
        ["int8", "2", "90.90", "%", "-0.10", "±", "0.10", "-0.2", "-", "0.10", "yes"],
        [slow.ROUNDS, "2", "89.90", "%", "-1.10", "±", "0.10", "-0.5", "-", "0.10", "no"],
    ]


def test_a_picture_of_training_over_slow_links(tmp_path: Path) -> None:
    curves = {m: {"0": [(234, 80.0), (468, 90.0)]} for m in ("f32", "int8")}
    slow.plot([measured(1, f32=0.1, int8=0.06, alone=0.05)], curves, tmp_path / "slow.svg")
    assert "int8" in (tmp_path / "slow.svg").read_text()
