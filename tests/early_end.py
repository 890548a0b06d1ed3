# SPDX-License-Identifier: Apache-2.0
"""A rank ends right after its creation, repeatedly: no other rank may die because of it, and ddlrun
names that rank each time.

    python tests/early_end.py                        500 times 4 ranks, 100 times 8, in Python
    python tests/early_end.py --runs 20 --ranks 4    some of it
    python tests/early_end.py --program build/tsan/tests/test_early_end --runs 50 --ranks 4
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tqdm import tqdm

VICTIM = 1
PROGRAM = f"""
import numpy as np
import ddl_core
comm = ddl_core.init()
if comm.rank == {VICTIM}:
    raise RuntimeError("it gives up")
ones = np.ones(10, np.float32)
while True:
    comm.allreduce(ones)
"""


def run_once(command: list[str], ranks: int, folder: str) -> str:
    """Return the error of one run, or "". It does not run in the project's folder, whose sources
    would be imported."""
    launcher = [sys.executable, "-m", "ddl_launch", "-n", str(ranks)]
    done = subprocess.run(
        [*launcher, *command], cwd=folder, capture_output=True, text=True, timeout=120
    )
    verdicts = re.findall(r"^ddlrun: (rank \d+ .*)", done.stderr, re.M)
    named = [v for v in verdicts if v.startswith(f"rank {VICTIM} ") and "exit code" in v]
    crashed = re.search(r"SIG[A-Z]+|Sanitizer|Fatal Python error", done.stderr)
    if done.returncode and len(verdicts) == len(named) == 1 and not crashed:
        return ""
    return f"exit code {done.returncode}\n{done.stderr}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--runs", type=int, help="how often; default: 500 for 4 ranks, 100 for 8")
    parser.add_argument("--ranks", type=int, help="of one run; default: 4 and then 8")
    parser.add_argument("--program", help="a built test_early_end instead of the Python program")
    arguments = parser.parse_args()
    plan = {4: 500, 8: 100}
    if arguments.ranks or arguments.runs:
        ranks = arguments.ranks or 4
        plan = {ranks: arguments.runs or plan.get(ranks, 100)}
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "early_end.py")
        program.write_text(PROGRAM)
        own = [str(Path(arguments.program).resolve())] if arguments.program else None
        command = own or [sys.executable, str(program)]
        for ranks, runs in plan.items():
            for number in tqdm(range(runs), desc=f"{ranks} ranks", disable=None):
                if why := run_once(command, ranks, folder):
                    wrong += 1
                    tqdm.write(f"WRONG run {number} of {ranks} ranks: {why}")
    total = sum(plan.values())
    print(f"{total - wrong} passed, {wrong} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
