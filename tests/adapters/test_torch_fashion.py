# SPDX-License-Identifier: Apache-2.0
"""The example that trains on Fashion-MNIST, with a small generated stand-in for the images."""

import gzip
import json
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import Run

pytestmark = pytest.mark.usefixtures("torch_native")

PROGRAM = Path(__file__).resolve().parent.parent.parent / "examples" / "fashion.py"
SLOW = pytest.mark.slow
TRAINED = 2 * 256  # images of the stand-in: two steps


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write files in the format of Fashion-MNIST. The images of a class are equally bright."""
    folder = tmp_path_factory.mktemp("stand_in")
    random = np.random.default_rng(0)
    for part, count in (("train", TRAINED), ("t10k", 100)):
        labels = random.integers(10, size=count)
        noise = random.integers(25, size=(count, 28, 28))
        for name, array in (
            (f"{part}-images-idx3-ubyte.gz", 25 * labels[:, None, None] + noise),
            (f"{part}-labels-idx1-ubyte.gz", labels),
        ):
            head = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
            (folder / name).write_bytes(gzip.compress(head + array.astype(np.uint8).tobytes()))
    return folder


@pytest.mark.parametrize(
    "method", ["int4", "rounds", *(pytest.param(m, marks=SLOW) for m in ("bf16", "elastic"))]
)
def test_each_method_trains(ddlrun: Run, tmp_path: Path, stand_in: Path, method: str) -> None:
    # With 4 channels PyTorch 2.13 dies by SIGSEGV in the backward pass on some processors.
    options = ["--data", str(stand_in), "--epochs", "2", "--width", "8", "--local-steps", "2"]
    env = {"DDL_LINKS": "tcp"}
    words = [*options, "--method", method, "--wire", "int8", "--json", "curve.json"]
    ended = ddlrun(2, PROGRAM, *words, limit=240, env=env).expect_success()
    curve = json.loads((tmp_path / "curve.json").read_text())
    assert [steps for steps, _ in curve] == [2, 4]
    assert all(0 <= accuracy <= 100 for _, accuracy in curve)
    assert f"step 4  accuracy {curve[-1][1]:.2f} %" in ended.out


def test_images_that_are_missing(run_here: Run) -> None:
    ended = run_here([sys.executable, PROGRAM, "--data", "nowhere"], limit=120)
    assert ended.code == 1
    assert "nowhere/train-images-idx3-ubyte.gz does not exist" in ended.err
    assert "`apt-get download dataset-fashion-mnist`" in ended.err
    assert "`dpkg -x dataset-fashion-mnist_*.deb FOLDER`" in ended.err
