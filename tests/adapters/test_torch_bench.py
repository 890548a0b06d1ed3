# SPDX-License-Identifier: Apache-2.0
"""python -m bench training measures DistributedDataParallel with libddl and Gloo. The test does not
check the times."""

import json
import sys
from pathlib import Path

import pytest
from conftest import Run

ROOT = Path(__file__).resolve().parent.parent.parent
SLOW = pytest.mark.slow
COMMAND = [sys.executable, "-m", "bench", "training"]


@pytest.mark.slow
@pytest.mark.usefixtures("torch_native")
@pytest.mark.parametrize(
    ("model", "millions", "loaders"),
    [("small", "0.1", 1), pytest.param("transformer", "19.2", 0, marks=SLOW)],
)
def test_it_measures(
    run_program: Run, tmp_path: Path, model: str, millions: str, loaders: int
) -> None:
    files = ["--json", tmp_path / "found.json", "--plot", tmp_path / "found.png"]
    short = ["--models", model, "--rounds", "2", "--steps", "1", "--loaders", str(loaders)]
    ended = run_program([*COMMAND, *short, *files], cwd=ROOT, limit=300).expect_success()
    assert f"{model}, {millions} M parameters, reduced in buckets of " in ended.out
    told = json.loads((tmp_path / "found.json").read_text())
    assert [row["backend"] for row in told["rows"]] == ["ddl", "gloo", "alone"]
    for row in told["rows"]:
        assert row["steps_per_second"] == pytest.approx(1e3 / row["step"])
    ddl, gloo, alone = told["rows"]
    assert ddl["faster"] > 0 and gloo["faster"] > 0 and alone["faster"] is None
    assert 0 <= ddl["hidden"] <= 1 and alone["hidden"] is None
    (samples,) = told["samples"]
    assert sum(samples["buckets"]) == 4 * samples["parameters"]
    assert [len(steps) for steps in samples["steps"]["ddl"]] == [1, 1]
    assert (tmp_path / "found.png").stat().st_size > 1000


def test_what_it_does_not_know(run_program: Run) -> None:
    ended = run_program([*COMMAND, "--models", "resnet18"], cwd=ROOT)
    assert ended.code == 2
    assert "--models: 'resnet18' must be one of resnet50, transformer, small" in ended.err
    ended = run_program([*COMMAND, "--images", "0"], cwd=ROOT)
    assert ended.code == 2 and "--images must be at least 1, not 0" in ended.err


@pytest.mark.usefixtures("torch_native")
def test_the_one_for_gpus_runs_without_one(run_program: Run, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "gpu", "--device", "cpu", "--sizes", "8,4KiB"]
    files = ["--seconds", "0.01", "--json", tmp_path / "found.json"]
    ended = run_program([*command, *files], cwd=ROOT, limit=120).expect_success()
    assert ended.out.startswith("no GPU, 2 ranks, medians\n")
    medians = json.loads((tmp_path / "found.json").read_text())["medians"]
    assert list(medians) == ["8", "4096"]
    for times in medians.values():
        assert list(times) == ["ddl", "gloo", "by hand", "copies", "device"]
        assert all(seconds > 0 for seconds in times.values())
