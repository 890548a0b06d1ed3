# SPDX-License-Identifier: Apache-2.0
"""Run `ddl elastic run` with audited.py several times in one process, which imports PyTorch once.

Each line of stdin is a run, as JSON: its options and the program's. A line of stdout has its exit
code and report, after @.
"""

import json
import sys
from pathlib import Path

from ddl_launch.commands.cli import main

PROGRAM = Path(__file__).with_name("audited.py")
REPORT = Path("report.json")


def run(options: list[str], words: list[str]) -> int:
    sys.argv = ["ddl"]
    try:
        return int(
            main(["elastic", "run", "--report", str(REPORT), *options, str(PROGRAM), *words]) or 0
        )
    except SystemExit as end:  # also CommandError
        return int(end.code or 0)


if __name__ == "__main__":
    for line in sys.stdin:
        code = run(*json.loads(line))
        print("@", json.dumps([code, json.loads(REPORT.read_text())]), flush=True)
