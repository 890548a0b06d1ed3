# SPDX-License-Identifier: Apache-2.0
"""Files in which a job's workers record their steps: what was committed when, and by which
worker."""

import time
from contextlib import suppress
from pathlib import Path


def slow_down() -> None:
    """Return the seconds in the file "slow", or 0 if there is none."""
    with suppress(FileNotFoundError, ValueError):
        time.sleep(float(Path("slow").read_text()))


def tell(number: int, member: int) -> None:
    with Path(f"steps.{member}").open("a") as file:
        file.write(f"{time.time()} {number}\n")


def told(folder: Path) -> dict[int, list[tuple[float, int]]]:
    found = {}
    for path in folder.glob("steps.*"):
        lines = path.read_text().split("\n")[:-1]  # the last line may be incomplete
        pairs = [line.split() for line in lines]
        found[int(path.suffix[1:])] = [(float(at), int(number)) for at, number in pairs]
    return found


def last(folder: Path) -> int:
    return max((pairs[-1][1] for pairs in told(folder).values() if pairs), default=-1)


def trainers(folder: Path, since: int) -> list[int]:
    return sorted(m for m, pairs in told(folder).items() if pairs and pairs[-1][1] > since)
