# SPDX-License-Identifier: Apache-2.0
"""Count the instructions of the paths in count_instructions.c, and compare with recorded numbers.

    python3 instructions.py PROGRAM COMPILER            compare; exit code 77 where it cannot
    python3 instructions.py PROGRAM COMPILER --record   write them into instructions.json

COMPILER names it as CMake does, such as "GNU 12.2.0": another compiler's code has other numbers, so
they are compared for the one they were recorded with, up to its minor version. Callgrind counts;
timing plays no part, so a noisy machine gives the same numbers.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

RECORD = Path(__file__).with_name("instructions.json")
TOLERANCE = 0.03
CANNOT = 77
AGAIN = "make instructions-baseline"


def skip(why: str) -> None:
    """Leave, saying that this cannot run here."""
    print(f"skipped: {why}")
    sys.exit(CANNOT)


def count(program: str) -> dict[str, int]:
    """The instructions of each path, by callgrind: it writes a file each time `counted` ends."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        options = ["--collect-atstart=no", "--toggle-collect=counted", "--dump-after=counted"]
        command = ["valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={out}", *options]
        done = subprocess.run([*command, program], capture_output=True, text=True, timeout=240)
        if done.returncode == CANNOT:
            skip(done.stderr.strip())
        if done.returncode:
            raise SystemExit(f"{program} failed under valgrind:\n{done.stdout}{done.stderr}")
        counts = {}
        for number, path in enumerate(done.stdout.splitlines(), 1):
            found = re.search(r"^totals: (\d+)", Path(f"{out}.{number}").read_text(), re.M)
            counts[path] = int(found[1]) if found else 0
        return counts


def compare(counts: dict[str, int], record: dict[str, int]) -> list[str]:
    """A line for each path that differs from the record by more than the tolerance."""
    wrong = []
    for path in sorted({*counts, *record}):
        now, then = counts.get(path, 0), record.get(path, 0)
        if abs(now - then) > TOLERANCE * then:
            change = f"{100 * (now / then - 1):+.1f} %" if then else "not recorded"
            wrong.append(f"{path}: {now} instructions, {then} recorded ({change})")
    return wrong


def main() -> None:
    """Count, then compare or record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program")
    parser.add_argument("compiler")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    if not shutil.which("valgrind"):
        skip("there is no valgrind (Debian: valgrind)")
    if platform.machine() != "x86_64":
        skip(f"the numbers are those of x86-64, this is {platform.machine()}")
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {"compiler": "", "counts": {}}
    compiler = ".".join(options.compiler.split(".")[:2])
    if not options.record and compiler != record["compiler"]:
        skip(f"the numbers are those of {record['compiler']}, this is {compiler}")
    counts = count(options.program)
    if options.record:
        RECORD.write_text(json.dumps({"compiler": compiler, "counts": counts}, indent=2) + "\n")
    for path, number in counts.items():
        print(f"{number:9}  {path}")
    wrong = [] if options.record else compare(counts, record["counts"])
    if wrong:
        print("more than 3 % off; if that is meant, or a gain, record it: " + AGAIN)
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
