# SPDX-License-Identifier: Apache-2.0
"""Ranks of a process group of "ddl" that are threads of one process, as Gloo allows."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import Finished, Run

PROGRAM = Path(__file__).parent / "programs" / "torch_threads.py"

pytestmark = pytest.mark.usefixtures("torch_native")


@pytest.mark.parametrize(
    ("threads", "native"),
    [
        ((2,), "1"),
        pytest.param((3,), "1", marks=pytest.mark.slow),
        pytest.param((2, 1), "1", marks=pytest.mark.slow),
        pytest.param((1, 3), "1", marks=pytest.mark.slow),
        pytest.param((2,), "0", marks=pytest.mark.slow),
        pytest.param((1, 2), "0", marks=pytest.mark.slow),
    ],
)
def test_ranks_that_are_threads(
    run_here: Run, find_port: Callable[[], int], threads: tuple[int, ...], native: str
) -> None:
    port = find_port()

    def start(number: int) -> Finished:
        command = [sys.executable, PROGRAM, port, number, *threads]
        env = {"DDL_TORCH_NATIVE": native, "OMP_NUM_THREADS": "1"}
        ended: Finished = run_here(command, env=env, limit=120)
        return ended.expect_success()

    with ThreadPoolExecutor(len(threads)) as pool:
        for ended, count in zip(pool.map(start, range(len(threads))), threads, strict=True):
            assert ended.out.count("done") == count
