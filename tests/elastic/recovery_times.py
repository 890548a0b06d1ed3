# SPDX-License-Identifier: Apache-2.0
"""How long after a kill -9 the survivors have committed the next step.

    python tests/elastic/recovery_times.py [RUNS [shard]]

Prints a table: by the phase in which one of four ranks is killed, the time from just before the
kill until the last survivor has agreed on the next step, its own shares of it included, and beside
it how long an undisturbed step takes. Every run also is a test: see conftest.py. shard: of jobs
with shard=True.
"""

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from elastic.conftest import Members

STEP = 6


def commits(log: list[list[Any]]) -> dict[int, float]:
    """Return, by step, the time of the agreement on it."""
    return {line[1]: line[3] for line in log if line[0] == "commit"}


def measure(members: Members, links: str, phase: str, shard: bool) -> tuple[float, float]:
    """Return the seconds from the kill to the next step, and those of a step without a kill."""
    kills = [{"member": 1, "step": STEP, "phase": phase}]
    logs = members.check(members=4, kills=kills, links=[links], shard=shard)
    killed = next(line[2] for line in logs[1] if line[0] == "kill")
    survivors = [commits(log) for member, log in enumerate(logs) if member != 1]
    following = STEP + (phase == "apply")
    usual = [each[t] - each[t - 1] for each in survivors for t in range(1, STEP)]
    return max(each[following] for each in survivors) - killed, statistics.median(usual)


def main(runs: int, shard: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        members = Members(Path(folder))
        print(
            "| killed in | links | runs | median | worst | a step takes |",
            "|---|---|---|---|---|---|",
            sep="\n",
        )
        for phase in ("compute", "reduce", "vote", "apply"):
            for links in ("shm", "tcp"):
                found = [measure(members, links, phase, shard) for _ in range(runs)]
                times = [1000 * after for after, _ in found]
                usual = 1000 * statistics.median(step for _, step in found)
                print(
                    f"| {phase} | {links} | {runs} | {statistics.median(times):.0f} ms"
                    f" | {max(times):.0f} ms | {usual:.0f} ms |",
                    flush=True,
                )
        members.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5, "shard" in sys.argv[2:])
