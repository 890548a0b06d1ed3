"""The example that trains ResNet-50 on a folder of photographs."""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
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


def test_resumed_as_if_never_interrupted(ddlrun: Run, data: Path, tmp_path: Path) -> None:
    """The same weights, to the last bit, also in the middle of an epoch; and it learns."""
    train = [PROGRAM, str(data), *SMALL]
    whole = ddlrun(2, *train, "--steps", "18", "--curve", "loss.png", limit=240)
    ended = outcome(whole)
    assert (tmp_path / "loss.png").stat().st_size > 1000
    assert ended.last < 0.8 * ended.first
    assert "18/18" in whole.err

    # Five steps make an epoch.
    ddlrun(2, *train, "--steps", "7", "--checkpoint", "part", limit=240).expect_success()
    resumed = ddlrun(2, *train, "--steps", "18", "--resume", "part", limit=240)
    assert outcome(resumed).weights == ended.weights
    assert "7/18" in resumed.err or "8/18" in resumed.err


def test_other_options_than_the_checkpoints(ddlrun: Run, data: Path, tmp_path: Path) -> None:
    train = [PROGRAM, str(data), *SMALL, "--steps", "1"]
    ddlrun(2, *train, "--checkpoint", "first", "--bf16", limit=240).expect_success()
    ended = ddlrun(2, *train, "--resume", "first", limit=240)
    assert ended.code == 1
    assert "first was made with bf16 True, not False" in ended.err
    assert not list(tmp_path.glob("*.partial"))


def test_no_images(run_program: Run, tmp_path: Path) -> None:
    ended = run_program([sys.executable, PROGRAM, "nowhere"], cwd=tmp_path, limit=120)
    assert ended.code == 1
    assert "there is no folder nowhere/train; --make-sample makes one" in ended.err
    assert "Traceback" not in ended.err
