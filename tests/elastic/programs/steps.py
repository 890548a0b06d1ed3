# SPDX-License-Identifier: Apache-2.0
"""The steps of a job, as its workers tell of them in files: what is committed when, and by whom."""

import time
from contextlib import suppress
from pathlib import Path


def slow_down() -> None:
    """As many seconds as the file "slow" says, while there is one."""
    with suppress(FileNotFoundError, ValueError):
        time.sleep(float(Path("slow").read_text()))


def tell(number: int, member: int) -> None:
    with Path(f"steps.{member}").open("a") as file:
        file.write(f"{time.time()} {number}\n")


def told(folder: Path) -> dict[int, list[tuple[float, int]]]:
    found = {}
    for path in folder.glob("steps.*"):
        lines = path.read_text().split("\n")[:-1]  # the last line may be on its way
        pairs = [line.split() for line in lines]
        found[int(path.suffix[1:])] = [(float(at), int(number)) for at, number in pairs]
    return found


def last(folder: Path) -> int:
    return max((pairs[-1][1] for pairs in told(folder).values() if pairs), default=-1)


def trainers(folder: Path, since: int) -> list[int]:
    return sorted(m for m, pairs in told(folder).items() if pairs and pairs[-1][1] > since)
