# SPDX-License-Identifier: Apache-2.0
"""The example that trains ResNet-50 on a folder of photographs."""

import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import Finished, Run

pytestmark = pytest.mark.usefixtures("torch_native")

PROGRAM = Path(__file__).resolve().parent.parent.parent / "examples" / "imagenet_resnet50.py"
SMALL = ["--size", "32", "--batch", "6", "--workers", "1", "--epochs", "8"]


@dataclass(frozen=True)
class Trained:
    first: float
    last: float
    efficiency: int
    weights: str


@pytest.fixture(scope="module")
def data(run_program: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("imagenet")
    command = [sys.executable, PROGRAM, "--make-sample", "20", "data"]
    run_program(command, cwd=folder, limit=120).expect_success()
    for others in (folder / "data").glob("*/digit[1-9]"):  # to tell those apart takes long
        shutil.rmtree(others)
    return folder / "data"


def outcome(ended: Finished) -> Trained:
    found = re.search(
        r"loss ([\d.]+) to ([\d.]+)  accuracy [\d.]+ %  [\d.]+ images/s"
        r"  scaling efficiency (\d+) % of 2 x [\d.]+ images/s  weights ([0-9a-f]{16})",
        ended.expect_success().out,
    )
    assert found, ended.out
    return Trained(float(found[1]), float(found[2]), int(found[3]), found[4])


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "until"), [(6, 3), (18, 7)])  # an epoch has five steps
def test_resumed_as_if_never_interrupted(
    ddlrun: Run, data: Path, tmp_path: Path, steps: int, until: int
) -> None:
    """A resumed training ends with the same weights to the last bit, even if it resumes in the
    middle of an epoch. Three epochs reduce the loss. Options that differ from the checkpoint's
    raise an error."""
    train = [PROGRAM, str(data), *SMALL]
    whole = ddlrun(2, *train, "--steps", str(steps), "--curve", "loss.png", limit=240)
    ended = outcome(whole)
    assert (tmp_path / "loss.png").stat().st_size > 1000
    assert steps < 15 or ended.last < 0.8 * ended.first
    assert f"{steps}/{steps}" in whole.err

    part = ["--steps", str(until), "--checkpoint", "part"]
    ddlrun(2, *train, *part, limit=240).expect_success()
    assert not list(tmp_path.glob("*.partial"))
    resumed = ddlrun(2, *train, "--steps", str(steps), "--resume", "part", limit=240)
    assert outcome(resumed).weights == ended.weights
    assert f"resuming after step {until} of part" in resumed.out

    refused = ddlrun(2, *train, "--resume", "part", "--bf16", limit=240)
    assert refused.code == 1
    assert "part was made with bf16 False, not True" in refused.err


@pytest.mark.slow
def test_bf16(ddlrun: Run, data: Path) -> None:
    train = [PROGRAM, str(data), *SMALL, "--steps", "6", "--bf16"]
    outcome(ddlrun(2, *train, limit=240))


def test_no_images(run_here: Run) -> None:
    ended = run_here([sys.executable, PROGRAM, "nowhere"], limit=120)
    assert ended.code == 1
    assert "the folder nowhere/train does not exist; --make-sample creates" in ended.err
    assert "Traceback" not in ended.err
