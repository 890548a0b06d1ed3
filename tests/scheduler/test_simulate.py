# SPDX-License-Identifier: Apache-2.0
"""`ddl simulate --jobs`: workloads, their simulation, and the goals of the policy."""

import math
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import Run

from ddl_scheduler.planning.model import StepModel
from ddl_scheduler.simulation.comparison import Result, compare, slots_make
from ddl_scheduler.simulation.methods import methods_all
from ddl_scheduler.simulation.simulate import START, Outcome, simulate
from ddl_scheduler.simulation.traces import WorkloadError, workload_read
from ddl_scheduler.simulation.workloads import (
    SPAN,
    TEST_SEEDS,
    TUNING_SEEDS,
    Submission,
    workload_make,
)

DDL = [sys.executable, "-m", "ddl_launch.commands"]
SLOTS = slots_make(16, 4)
METHODS = {method.name: method for method in methods_all(SLOTS)}
FIFO, SRTF, RESTARTS, OURS, BOUND = METHODS


def test_the_workload_has_the_published_shape() -> None:
    assert not set(TUNING_SEEDS) & set(TEST_SEEDS)
    assert workload_make(7) == workload_make(7) != workload_make(8)
    jobs = [job for seed in range(50) for job in workload_make(seed)]
    hours = [job.work / 3600 for job in jobs]
    for limit, share in ((1, 0.72), (10, 0.92), (60, 0.985)):
        assert sum(h < limit for h in hours) / len(jobs) == pytest.approx(share, abs=0.02)
    assert all(0 <= job.arrival <= SPAN and job.asked <= job.model.shares for job in jobs)
    (same, double) = workload_make(7, load=1.0), workload_make(7, load=2.0)
    assert [2 * job.work for job in same] == pytest.approx([job.work for job in double])


def lone(work_steps: float = 1000.0) -> Submission:
    return Submission("job", 50.0, StepModel(16, 0.25, 0.02, 0.003, measured=True), work_steps, 4)


def test_one_job_takes_what_its_steps_take() -> None:
    job = lone()
    fixed = simulate([job], SLOTS, METHODS[FIFO])
    assert fixed.times["job"] == pytest.approx(START + 1000 * job.model.seconds(4))
    assert fixed.makespan == fixed.times["job"]
    assert fixed.busy == pytest.approx(4 / 64)
    assert [stretch.size for stretch in fixed.stretches] == [4]
    ours = simulate([job], SLOTS, METHODS[OURS])
    best = START + 1000 * job.model.seconds(16, 2)
    assert best <= ours.times["job"] <= best + 15  # it may grow once more is measured


def test_a_job_that_grows_goes_on_meanwhile() -> None:
    """With libddl, a job continues while new processes start. A restart stops it for 30 s."""
    slots = slots_make(1, 8)
    shares = StepModel(8, 0.25, measured=True)
    # `long` has 4 of 8 slots while `short` runs, and 8 afterwards.
    jobs = [Submission("long", 0.0, shares, 2000, 8), Submission("short", 0.0, shares, 200, 8)]
    methods = {method.name: method for method in methods_all(slots)}
    ours, restarts = (simulate(jobs, slots, methods[name]) for name in (OURS, RESTARTS))
    assert [stretch.size for stretch in ours.stretches if stretch.name == "long"] == [4, 8]
    short = START + 200 * 0.5
    assert ours.times["short"] == pytest.approx(short)
    done = (short - START) / 0.5 + (START - 0.5) / 0.5  # at 4 ranks, excluding the change itself
    assert ours.times["long"] == pytest.approx(short + START + (2000 - done) * 0.25)
    late = restarts.times["long"] - ours.times["long"]
    assert 20 < late < 60 + 30


def check_outcome(outcome: Outcome, jobs: Sequence[Submission]) -> None:
    assert set(outcome.times) == {job.name for job in jobs}
    by_job: dict[str, float] = {}
    changes: list[tuple[float, int]] = []
    for stretch in outcome.stretches:
        assert stretch.start < stretch.end
        by_job[stretch.name] = by_job.get(stretch.name, 0) + stretch.size * (
            stretch.end - stretch.start
        )
        changes += [(stretch.start, stretch.size), (stretch.end, -stretch.size)]
    had = 0
    for _, change in sorted(changes):
        had += change
        assert 0 <= had <= len(SLOTS)
    for job in jobs:  # no job computes more than its slots allow
        assert by_job[job.name] >= job.work * (1 - 1e-6)
    total = sum(by_job.values())
    assert outcome.busy == pytest.approx(total / outcome.makespan / len(SLOTS))


@pytest.mark.parametrize("name", METHODS)
def test_slots_and_work_are_kept(name: str) -> None:
    jobs = workload_make(TUNING_SEEDS[0], 60)
    outcome = simulate(jobs, SLOTS, METHODS[name])
    check_outcome(outcome, jobs)
    assert simulate(jobs, SLOTS, METHODS[name]) == outcome


def check_goals(results: Sequence[Result], of_srtf: float) -> None:
    by_name = {result.method: result for result in results}
    ours, fifo = by_name[OURS], by_name[FIFO]
    assert ours.mean <= 0.30 * fifo.mean
    assert ours.mean <= of_srtf * by_name[SRTF].mean  # which knows the sizes
    assert ours.mean <= 0.95 * by_name[RESTARTS].mean
    assert ours.p99 < fifo.p99
    assert ours.makespan < fifo.makespan
    assert by_name[BOUND].mean < ours.mean  # otherwise the simulation is too optimistic
    assert ours.busy >= 0.95


@pytest.mark.slow
def test_the_goals_are_met_with_one_workload() -> None:
    jobs = workload_make(TEST_SEEDS[0])
    check_goals(compare([jobs], SLOTS, list(METHODS.values())), 1.05)


@pytest.mark.slow
@pytest.mark.parametrize(("load", "of_srtf"), [(1.0, 1.05), (2.0, 1.10)])
def test_the_goals_are_met(load: float, of_srtf: float) -> None:
    workloads = [workload_make(seed, load=load) for seed in TEST_SEEDS]
    check_goals(compare(workloads, SLOTS, list(METHODS.values())), of_srtf)


ADAPTDL = """\
name,time,application,num_replicas,batch_size
bert-1,300,bert,6,384
ncf-0,107,ncf,1,32768
"""
PHILLY = """\
timestamp,duration,num_gpus,gpu_time,user
2017-10-22 07:24:52,755.0,1,755.0,b436b2
2017-10-23 02:00:10,7200.0,24,172800.0,b436b2
2017-10-23 01:59:59,7200.0,8,57600.0,b436b2
2017-10-23 03:00:00,59.0,8,472.0,b436b2
2017-10-23 03:00:00,3600.0,0,0.0,b436b2
"""


def test_adaptdls_workloads(tmp_path: Path) -> None:
    path = tmp_path / "workload-1.csv"
    path.write_text(ADAPTDL)
    jobs = workload_read(str(path), 0, 160, 2.0)
    found = [(job.name, job.arrival, job.asked, job.model.shares) for job in jobs]
    assert found == [("ncf-0", 107.0, 1, 16), ("bert-1", 300.0, 6, 32)]
    assert [job.work for job in jobs] == pytest.approx([2 * 360.0, 2 * 3 * 3600.0])


def test_phillys_trace(tmp_path: Path) -> None:
    """Jobs from eight hours of the day are sampled, except short ones and those without GPUs."""
    path = tmp_path / "philly.csv"
    path.write_text(PHILLY)
    jobs = workload_read(str(path), 0, 160, 1.0)
    found = [(job.name, job.arrival, job.asked, job.work) for job in jobs]
    assert found == [
        ("line-3", 10.0, 24, pytest.approx(172800.0)),
        ("line-2", 5 * 3600 + 24 * 60 + 52, 1, pytest.approx(755.0)),
    ]
    assert len(workload_read(str(path), 0, 1, 1.0)) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            ADAPTDL.replace("bert,6", "vgg,6"),
            "line 2: the application is 'vgg'; must be one of ncf",
        ),
        (ADAPTDL.replace("bert,6", "bert,0"), "line 2: num_replicas is '0'; must be a number >= 1"),
        (ADAPTDL.replace("107", "soon"), "line 3: time is 'soon'; must be a number >= 0"),
        (PHILLY.replace("2017-10-23 01", "monday"), "line 4: the timestamp is 'monday"),
        (PHILLY.replace("755.0,1", "nan,1"), "line 2: duration is 'nan'"),
        ("a,b\n1,2\n", "This file has a, b"),
        ("", "This file has no columns"),
        (ADAPTDL.split("\n")[0], "the file contains no job"),
        ("name,time,application,num_replicas\nncf-0,1\n", "line 2: the application is None"),
    ],
)
def test_a_bad_trace(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(WorkloadError) as error:
        workload_read(str(path), 0, 160, 1.0)
    assert str(error.value).startswith(str(path)) and message in str(error.value)


def test_command(run_here: Run, tmp_path: Path) -> None:
    options = ["--slots", "4x4", "--seeds", "1,2", "--count", "12", "--plot", "jobs.png"]
    ended = run_here([*DDL, "simulate", "--jobs", "generated", *options])
    lines = ended.expect_success().out.splitlines()
    assert lines[0].startswith("16 slots on 4 hosts; 12 jobs of ")
    assert lines[2].split()[:3] == ["method", "mean", "median"]
    assert [line.split("  ")[0] for line in lines[3:]] == list(METHODS)
    assert (tmp_path / "jobs.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "CLUSTER.toml is missing"),
        (["--jobs", "none.csv"], "--jobs none.csv: No such file or directory"),
        (
            ["--jobs", "generated", "--slots", "4"],
            "'4' is not a number of hosts and of slots on each",
        ),
        (
            ["--jobs", "generated", "--slots", "0x4"],
            "'0x4' is not a number of hosts and of slots on each",
        ),
        (["--jobs", "generated", "--load", "0"], "'0' is not a number above 0"),
        (["--jobs", "generated", "--seeds", "1,x"], "'1,x' is not a list of integers"),
    ],
)
def test_wrong_usage(run_here: Run, options: list[str], message: str) -> None:
    ended = run_here([*DDL, "simulate", *options])
    assert ended.code == 2
    assert message in ended.err


def test_a_percentile_is_of_the_jobs() -> None:
    outcome = Outcome({str(n): float(n) for n in range(100)}, 1.0, 1.0, 0, [])
    assert (outcome.percentile(0.5), outcome.percentile(0.99)) == (50.0, 99.0)
    assert math.isclose(outcome.mean, 49.5)
