# SPDX-License-Identifier: Apache-2.0
"""The memory of a rank and the start-up time, measured by resources.c."""

import subprocess

from bench.cases import UsageError
from bench.environments import compile_program
from bench.goals import MI, Verdict
from bench.libraries import Library


def resources(library: Library) -> list[Verdict]:
    """Return the measurements with their upper limits."""
    program = compile_program("resources", library.python)

    def ask(*arguments: str) -> float:
        command = [str(program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise UsageError(f"{' '.join(command)}: {done.stderr.strip()}")
        return float(done.stdout)

    def line(case: str, value: float, least: float, unit: str, scale: float) -> Verdict:
        shown = f"{value / scale:.3g} {unit}"
        return Verdict(case, "", shown, f"{least / scale:.3g} {unit}", value <= least)

    return [
        line("memory of a rank, 8 ranks", ask("memory", "8"), 32 * MI, "MiB", MI),
        line("growth over 1 000 000 operations", ask("flat", "1000000"), MI // 8, "MiB", MI),
        line("create, 8 ranks, from the last entry on", ask("create", "8"), 0.05, "ms", 1e-3),
        line("spawn to first all-reduce, 8 ranks", ask("spawn", "8"), 0.3, "ms", 1e-3),
    ]
