# SPDX-License-Identifier: Apache-2.0
"""The whole matrix: the C program under sanitizers, and the Python one between real processes.

    python tests/matrix/run.py            all of it (make test-matrix)
    python tests/matrix/run.py asan       only these parts; --list tells what there is

One line for each slice with the number of its cases, and the sum at the end. What fails is told as
the command that runs it alone.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
sys.path[:0] = [str(FOLDER), str(ROOT / "tests")]

from cases import SIZES  # noqa: E402
from run_all import fixed_addresses, stages  # noqa: E402

LIMIT = 3600  # seconds for one command
# The links, and the memory of the arrays: see program.py.
WHERE = [("shm", "private"), ("shm", "shared"), ("shm", "mixed"), ("tcp", "private")]


@dataclass
class Part:
    """Programs that print their cases in lines "... N cases ...", and the commands that build
    them."""

    what: str
    runs: list[tuple[str, list[str], dict[str, str]]]  # a label, a command, its environment
    build: list[list[str]] = field(default_factory=list)


def c_part(what: str, stage_name: str, runs: list[list[str]]) -> Part:
    """test_matrix as the stage of tests/run_all.py builds the C tests."""
    stage = stages()[stage_name]
    tree = stage.commands[0][stage.commands[0].index("-B") + 1]
    program = f"{tree}/tests/test_matrix"
    wrap = fixed_addresses() if stage_name == "tsan" else []
    build = [stage.commands[0], [*stage.commands[1], "--target", "test_matrix"]]
    return Part(what, [("", [*wrap, program, *run], stage.env) for run in runs], build)


def python_part() -> Part:
    launcher = [sys.executable, "-m", "ddl_launch"]
    return Part(
        "Python, pairwise, between processes",
        [
            (f"{links:6} {buffers:7} {size} ranks ",
             [*launcher, "-n", str(size), str(FOLDER / "program.py")],
             {"DDL_LINKS": links, "DDL_MATRIX_BUFFERS": buffers})
            for links, buffers in WHERE
            for size in SIZES
        ],
    )  # fmt: skip


def parts() -> dict[str, Part]:
    full, pairwise = ["inproc", "full"], [["shm", "pairwise"], ["tcp", "pairwise"]]
    # Buffers from ddl_alloc, on all ranks and on some. Shorter ones are not lent.
    lent = [[kind, "full", "count=100003"] for kind in ("shared", "mixed")]
    lent_pairwise = [[kind, "pairwise"] for kind in ("shared", "mixed")]
    return {
        "asan": c_part("C under ASan and UBSan", "asan", [full, *pairwise, *lent]),
        "tsan": c_part("C under TSan", "tsan", [full, *pairwise, *lent_pairwise]),
        "wires": c_part("C, Release", "c", [["shm", "full"], ["tcp", "full"]]),
        "py": python_part(),
    }


def run(label: str, command: list[str], env: dict[str, str]) -> tuple[int, bool]:
    """Return how many cases ran, and whether all succeeded. Print the program's lines."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS", "DDL"))}
    started = time.monotonic()
    process = subprocess.Popen(
        [str(ROOT / command[0]) if command[0].startswith("build/") else command[0], *command[1:]],
        cwd=FOLDER if label else ROOT,
        env={**inherited, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    cases = 0
    try:
        for line in process.stdout:
            found = re.search(r"\b(\d+) cases", line)
            if found and not re.search(r"of \d+ cases passed", line):
                cases += int(found[1])
            if label and found:
                line = f"{label} {found[0]}  {time.monotonic() - started:.1f} s\n"
            if "OMP_NUM_THREADS" not in line:
                print(line, end="", flush=True)
        return cases, process.wait(LIMIT) == 0 and cases > 0
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise


def main(names: list[str]) -> int:
    everything = parts()
    if names == ["--list"]:
        for name, part in everything.items():
            print(f"{name:6} {part.what}")
        return 0
    assert set(names) <= everything.keys(), f"there is: {', '.join(everything)}"
    total, failures, started = 0, 0, time.monotonic()
    for name in names or everything:
        part = everything[name]
        print(f"-- {name}: {part.what}", flush=True)
        for command in part.build:
            subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        for label, command, env in part.runs:
            cases, good = run(label, command, env)
            total += cases
            if not good:
                failures += 1
                print(f"FAILED: {' '.join(command)}", flush=True)
    print(f"{total} cases, {failures} runs failed  {time.monotonic() - started:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
