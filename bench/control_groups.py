# SPDX-License-Identifier: Apache-2.0
"""Groups of processes with a limited share of processor time, in Linux's control groups v1 or
v2."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PERIOD = 20_000  # microseconds
PLACES = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))


@contextmanager
def quotas(cores: list[float]) -> Iterator[list[Path]]:
    """Create a group for each number of cores. A process enters a group by `enter`. Raises OSError
    if control groups cannot be written."""
    folders = [_place() / f"ddl-bench-{os.getpid()}-{number}" for number in range(len(cores))]
    made: list[Path] = []
    try:
        for folder, each in zip(folders, cores, strict=True):
            folder.mkdir()
            made.append(folder)
            limit = int(each * PERIOD)
            if (folder / "cpu.max").exists():
                (folder / "cpu.max").write_text(f"{limit} {PERIOD}")
            else:
                (folder / "cpu.cfs_period_us").write_text(str(PERIOD))
                (folder / "cpu.cfs_quota_us").write_text(str(limit))
        yield folders
    finally:
        for folder in made:
            folder.rmdir()


def enter(folder: Path) -> None:
    (folder / "cgroup.procs").write_text(str(os.getpid()))


def _place() -> Path:
    for place in PLACES:
        if (place / "cpu.stat").exists():
            return place
    raise FileNotFoundError(f"no control groups for processors in {', '.join(map(str, PLACES))}")
