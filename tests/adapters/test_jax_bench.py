# SPDX-License-Identifier: Apache-2.0
"""python -m bench training --framework jax measures jax's collectives and ddl_jax's operations. The
test does not check the times."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
from conftest import Run

if importlib.util.find_spec("jax") is None:
    pytest.skip("there is no jax", allow_module_level=True)

ROOT = Path(__file__).resolve().parent.parent.parent
COMMAND = [sys.executable, "-m", "bench", "training", "--framework", "jax"]


@pytest.mark.slow
@pytest.mark.usefixtures("jax_native")
def test_it_measures(run_program: Run, tmp_path: Path) -> None:
    files = ["--json", tmp_path / "found.json", "--plot", tmp_path / "found.png"]
    short = ["--rounds", "2", "--steps", "1"]
    env = {"BENCH_CACHE": str(tmp_path)}
    ended = run_program([*COMMAND, *short, *files], cwd=ROOT, env=env, limit=300).expect_success()
    assert "transformer, 25.3 M parameters, reduced in buckets of " in ended.out
    assert re.search(r"\| +64 MiB \|", ended.out) and "ddl_jax.jit" in ended.out
    told = json.loads((tmp_path / "found.json").read_text())
    assert [each["bytes"] for each in told["psum"]][::7] == [8, 64 << 20]
    for each in told["psum"]:
        assert set(each["seconds"]) == {"ddl", "gloo", "alone"}
        assert all(min(seconds) > 0 for seconds in each["seconds"].values())
    (samples,) = told["samples"]
    assert sum(samples["buckets"]) == 4 * samples["parameters"]
    assert [len(steps) for steps in samples["communication"]["gloo"]] == [1, 1]
    small, large = told["calls"]
    assert small["bytes"] == 8 and large["bytes"] == 64 << 20
    assert "bare, fresh" in large["seconds"] and "jax.jit, in place" in small["seconds"]
    assert (tmp_path / "found.png").stat().st_size > 1000


def test_what_it_does_not_know(run_program: Run) -> None:
    for options, said in (
        (["--models", "resnet50"], "--models: 'resnet50' must be one of psum, transformer, calls"),
        (["--backends", "mpi"], "--backends: 'mpi' must be one of ddl, gloo"),
    ):
        ended = run_program([*COMMAND, *options], cwd=ROOT)
        assert ended.code == 2 and said in ended.err, ended.err


@pytest.mark.slow
@pytest.mark.usefixtures("jax_native")
def test_rank_that_cannot(run_program: Run, tmp_path: Path) -> None:
    env = {"BENCH_CACHE": str(tmp_path), "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    short = ["--backends", "ddl", "--models", "psum"]
    ended = run_program([*COMMAND, *short], cwd=ROOT, env=env, limit=120)
    assert ended.code == 1 and "this process has 2 devices" in ended.err, ended.err
