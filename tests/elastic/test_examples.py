# SPDX-License-Identifier: Apache-2.0
"""The examples with their own loops: processes that die change nothing."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import popen

EXAMPLES = Path(__file__).parents[2] / "examples"
LIMIT = 240  # seconds, on a busy machine


def states(folder: Path, port: int, size: int, words: list[str]) -> tuple[list[int], set[str]]:
    job = {"DDL_SIZE": str(size), "DDL_RENDEZVOUS": f"tcp://127.0.0.1:{port}", "DDL_LOG": "off"}
    processes = [
        popen(
            [sys.executable, *words],
            cwd=folder,
            env={**job, "DDL_SECRET": "x" * 16, "DDL_RANK": str(rank)},
            stdout=subprocess.DEVNULL,
        )
        for rank in range(size)
    ]
    told = [each.communicate(timeout=LIMIT)[1] for each in processes]
    found = {text.split("state ")[1].strip() for text in told if "state " in text}
    codes = [each.returncode for each in processes]
    assert found, "\n".join(told)
    return codes, found


@pytest.fixture(scope="module")
def images(run_program: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("images")
    command = [sys.executable, EXAMPLES / "imagenet_resnet50.py", "--make-sample", "2", "images"]
    run_program(command, cwd=folder, limit=LIMIT).expect_success()
    return folder / "images"


def check(folder: Path, find_port: Callable[[], int], words: list[Any]) -> None:
    words = [str(word) for word in words]
    codes, alone = states(folder, find_port(), 1, words)
    assert codes == [0]
    codes, disturbed = states(folder, find_port(), 3, [*words, "--kill", "1"])
    assert codes == [-signal.SIGKILL, 0, 0]
    assert disturbed == alone


@pytest.mark.slow
def test_the_page(run_here: Any, tmp_path: Path) -> None:
    page = (EXAMPLES.parent / "docs" / "elastic" / "tutorial.md").read_text()
    (text,) = re.findall(
        r"a complete program, `train.py`:\n\n<!--.*?-->\n```python\n(.*?)```", page, re.DOTALL
    )
    program = tmp_path / "train.py"
    command = [sys.executable, "-m", "ddl_launch.commands", "elastic", "run", "-n", 2, program]
    for passes, step in ((1, 19), (2, 39)):
        changed = text.replace("passes=12", f"passes={passes}").replace("% 90", "% 20")
        program.write_text(changed)
        done = run_here([*map(str, command)], limit=LIMIT).expect_success()
        assert re.findall(r"step (\d+)  loss .* accuracy 0\.", done.out) == [str(step)]
    assert "resumed after 23 steps" in done.out
    assert (tmp_path / "model.pt").exists()


@pytest.mark.slow
@pytest.mark.parametrize("shard", [[], ["--shard"]])
def test_gpt(tmp_path: Path, find_port: Callable[[], int], shard: list[str]) -> None:
    small = ["--width", 32, "--layers", 1, "--context", 32, "--megabytes", 0.2]
    more = ["--steps", 20, "--evaluate", 10, "--loader-workers", 1]
    check(tmp_path, find_port, [EXAMPLES / "elastic_gpt.py", *small, *more, *shard])


@pytest.mark.slow
def test_resnet(tmp_path: Path, find_port: Callable[[], int], images: Path) -> None:
    small = ["--size", 32, "--batch", 8, "--logical", 2, "--passes", 1]
    check(tmp_path, find_port, [EXAMPLES / "elastic_resnet.py", images, *small])
