# SPDX-License-Identifier: Apache-2.0
"""Measure the steps per second of the programs of docs/clients.md, with libddl and Gloo in turns.

    python tests/clients/rates.py [--rounds 3] [--table docs/clients.md]

Prints a table, or puts it into the page.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from clients.libraries import LIBRARIES, Library, install, train
from conftest import free_port

MARKS = ("<!-- rates -->\n", "<!-- end of rates -->\n")


def measure(library: Library, rounds: int) -> tuple[str, list[float], list[float]]:
    """Return the last loss, and each round's steps per second with libddl and with Gloo."""
    rates: dict[str, list[float]] = {"ddl": [], "gloo": []}
    losses = set()
    for number in range(rounds):
        for backend in ("ddl", "gloo") if number % 2 == 0 else ("gloo", "ddl"):
            with tempfile.TemporaryDirectory() as folder:
                trained = train(library, backend, Path(folder), free_port())
            rates[backend].append(statistics.median(trained.rates))
            losses.add(trained.losses[-1])
    assert len(losses) == 1, f"the losses differ: {losses}"
    return losses.pop(), rates["ddl"], rates["gloo"]


def table(rounds: int) -> str:
    lines = [
        "| program | loss | libddl, steps/s | Gloo, steps/s | ratio, median round |",
        "|---|---|---|---|---|",
    ]
    loads = [os.getloadavg()[0]]
    for name, library in LIBRARIES.items():
        install(library)
        loss, ddl, gloo = measure(library, rounds)
        loads.append(os.getloadavg()[0])
        ratio = statistics.median(a / b for a, b in zip(ddl, gloo, strict=True))
        middle = [statistics.median(rates) for rates in (ddl, gloo)]
        lines.append(f"| {name} | {loss} | {middle[0]:.1f} | {middle[1]:.1f} | {ratio:.2f} |")
        print(lines[-1], file=sys.stderr, flush=True)
    said = (
        f"Medians of {rounds} rounds of 2 processes on {os.cpu_count()} cores, whose load was"
        f" {min(loads):.0f} to {max(loads):.0f}; each round runs both backends."
    )
    return "\n".join([*lines, "", said, ""])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--table", type=Path, help="the page to put the table into")
    arguments = parser.parse_args()
    text = table(arguments.rounds)
    if arguments.table is None:
        print(text, end="")
        return
    page = arguments.table.read_text()
    before, after = page.split(MARKS[0])[0], page.split(MARKS[1])[1]
    arguments.table.write_text(f"{before}{MARKS[0]}\n{text}{MARKS[1]}{after}")


if __name__ == "__main__":
    main()
