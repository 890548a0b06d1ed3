# SPDX-License-Identifier: Apache-2.0
"""The machine's current state and its limits, measured by machine.c."""

import ctypes
import os
import platform
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from bench.cases import OPERATIONS, Case

_ELEMENTS = {"f32": 0, "f64": 1, "i8": 2, "f16": 3, "bf16": 3, "i32": 4, "i64": 5}

# How far apart two virtual cores are, by the round trip of a cache line in seconds (upper bound).
# Observed: 0.03 us for two threads of one core, 0.06 us for cores that share a cache, 0.3 us and
# more for others.
STATES = {"twin": 45e-9, "near": 150e-9, "far": float("inf")}
TAKEN = "taken"  # busy loops take the cores; no round trip is measured then
ALL_STATES = (*STATES, TAKEN)


@dataclass(frozen=True)
class State:
    """The machine's state at one moment.

    round_trip  seconds of a cache line's round trip from core 0 to core 1
    dirty_rate  bytes per second of plain stores into lines that the other core has just read
    others      other threads that were ready to run
    pace        seconds of a fixed piece of work on the slower core; it takes longer while the host
                lets another guest use the core's other thread
    taken       busy loops run beside the ranks
    """

    round_trip: float
    dirty_rate: float
    others: int = 0
    pace: float = 0.0
    taken: bool = False

    @property
    def name(self) -> str:
        if self.taken:
            return TAKEN
        return next(name for name, below in STATES.items() if self.round_trip < below)


def _others() -> int:
    """Return the number of runnable threads other than this one. Waits a moment first, so that
    ranks that have just answered fall asleep."""
    time.sleep(0.0005)
    running = Path("/proc/loadavg").read_text().split()[3].partition("/")[0]
    return int(running) - 1


class Machine:
    """Measurements of this machine. Measuring its state takes a few milliseconds."""

    def __init__(self, built: Path) -> None:
        built.mkdir(parents=True, exist_ok=True)
        source, library = Path(__file__).with_name("machine.c"), built / "machine.so"
        if not library.exists() or library.stat().st_mtime < source.stat().st_mtime:
            flags = ["-O3", "-march=native", "-shared", "-fPIC", "-pthread"]
            subprocess.run(["cc", *flags, str(source), "-o", str(library)], check=True)
        self._native = ctypes.CDLL(str(library))
        self._native.machine_round_trip.restype = ctypes.c_double
        self._native.machine_dirty_slots.restype = ctypes.c_double
        self._native.machine_pace.restype = ctypes.c_double
        self.cores = os.cpu_count() or 1

    def state(self) -> State:
        """Measure the current state of cores 0 and 1. A single core counts as twin. All ranks must
        sleep meanwhile."""
        others = min(_others() for _ in range(3))
        if self.cores < 2:
            return State(0.0, 0.0, others, self._native.machine_pace(0))
        pace = max(self._native.machine_pace(core) for core in (0, 1))
        near = self._native.machine_round_trip(0, 1)
        return State(near, self._native.machine_dirty_slots(0, 1), others, pace)

    def direct(self, case: Case, ranks: int, stream: bool, iterations: int) -> list[float]:
        """Return the seconds of each iteration of the operation done directly on memory that all
        ranks share, with plain or streaming stores. f16 and bf16 are added as integers of the same
        size."""
        seconds = (ctypes.c_double * iterations)()
        status = self._native.machine_direct(
            OPERATIONS.index(case.operation),
            _ELEMENTS[case.dtype],
            ranks,
            ctypes.c_size_t(case.bytes),
            stream,
            iterations,
            seconds,
        )
        if status:
            raise RuntimeError(f"no memory for {ranks} ranks and {case.bytes} bytes")
        return list(seconds)

    def describe(self) -> dict[str, str]:
        model = ""
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
        caches = []
        for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
            level, kind, size = (
                (folder / name).read_text().strip() for name in ("level", "type", "size")
            )
            if kind != "Instruction":
                caches.append(f"L{level} {size}")
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return {
            "processor": f"{model or platform.machine()}, {self.cores} cores",
            "caches": ", ".join(caches),
            "memory": f"{memory / 2**30:.0f} GiB",
            "kernel": platform.release(),
        }
