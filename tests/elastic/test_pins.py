# SPDX-License-Identifier: Apache-2.0
"""The bits of a share in JAX and TensorFlow depend only on settings that elastic training fixes."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "programs" / "share_bits.py"
LIMIT = 240  # seconds, on a busy machine


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["jax", "tensorflow"])
def test_bits_of_a_share(run_here: Any, framework: str) -> None:
    def bits(*words: str) -> Any:
        done = run_here([sys.executable, PROGRAM, framework, *words], limit=LIMIT)
        done.expect_success()
        return json.loads(done.out.splitlines()[-1])

    for threads in ("1", "2"):
        once = bits("--threads", threads)
        assert all(len(hashes) == 1 for hashes in once.values())
        assert bits("--threads", threads, "--cores", "1", "--repeat", "5", "--reversed") == once
