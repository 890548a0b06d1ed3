# SPDX-License-Identifier: Apache-2.0
"""The findings of `ddl doctor` about the machine: limits, memory, cores, the kernel, the clock.

System files are read below `root`, so that tests can describe other machines.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import math
import mmap
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ddl_launch.base.quantities import show_bytes, show_seconds
from ddl_launch.commands.finding import Finding, note, ok, wrong
from ddl_launch.rank import placement

_ROOT = Path("/")
_FILES_BASE = 64  # descriptors of a process
_SHM_SMALL = 1 << 30  # bytes; containers have 64 MiB by default
_MEMORY_PER_RANK = 256 << 20
_FAST_CLOCKS = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter")
_CLOCK_SLOW = 1e-6  # seconds for a reading, from Python


def limits(size: int, sockets: int = 1) -> Iterator[Finding]:
    """Check ulimit -n and -l for a job of `size` ranks with this number of sockets between two
    ranks."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Descriptors for each other rank over TCP, see libddl/src/comm/descriptors.c.
    each = 3 if sockets == 1 else 2 * sockets + 5
    need = _FILES_BASE + each * size
    told = f"{_limit(soft)} (at most {_limit(hard)}); a job of {size} takes about {need}"
    if 0 <= hard < need:
        yield wrong("open files", told, f"ulimit -Hn {need}, or LimitNOFILE= of the service")
    elif 0 <= soft < need:
        yield ok("open files", f"{told}; libddl raises the limit")
    else:
        yield ok("open files", told)
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    most = "unlimited" if locked < 0 else show_bytes(locked)
    yield ok("locked memory", f"{most}; libddl locks none")


def _limit(value: int) -> str:
    return "unlimited" if value < 0 else str(value)


def memory(ranks: int, root: Path = _ROOT) -> Iterator[Finding]:
    """Check the available memory, the cgroup's limit, and /dev/shm, which other libraries need."""
    for line in _read(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) << 10
            break
    else:
        yield note("memory", "cannot read the free memory", "mount /proc")
        return
    told = f"{show_bytes(available)} available"
    limit = _read(root / "sys/fs/cgroup/memory.max").strip()
    if limit.isdecimal():
        used = _read(root / "sys/fs/cgroup/memory.current").strip()
        left = int(limit) - (int(used) if used.isdecimal() else 0)
        told += f", {show_bytes(max(left, 0))} left of the cgroup's {show_bytes(int(limit))}"
        available = min(available, left)
    if available < ranks * _MEMORY_PER_RANK:
        yield note("memory", f"{told}, for {ranks} ranks", "start fewer ranks, or allow more")
    else:
        yield ok("memory", told)
    try:
        shm = os.statvfs(root / "dev/shm")
    except OSError:
        return  # libddl does not need /dev/shm
    size = shm.f_blocks * shm.f_frsize
    if 0 < size < _SHM_SMALL:
        yield note(
            "/dev/shm",
            f"{show_bytes(size)}; libddl does not use it, but other programs do (workers of"
            " PyTorch's"
            " DataLoader, Open MPI, NCCL)",
            "mount -o remount,size=8G /dev/shm, or docker run --shm-size=8g",
        )


def cores(ranks: int, root: Path = _ROOT) -> Iterator[Finding]:
    """Compare the cores that this process may use, and the cgroup's quota, with the number of
    ranks."""
    usable, total = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    told = f"{usable} of {total} usable, {ranks} ranks"
    if usable < ranks:
        yield note(
            "cores",
            f"{told}: some ranks share a core and delay each other",
            f"start at most {usable} ranks, or allow more cores (taskset, srun --cpus-per-task)",
        )
    else:
        yield ok("cores", told)
    quota = placement.quota("" if root == _ROOT else str(root))
    if quota == math.inf:
        return
    told = f"{quota:.3g} cores' time"
    if quota < min(ranks, usable):
        yield wrong(
            "cpu quota",
            f"{told} for {ranks} ranks: the kernel stops them for tens of milliseconds at a time",
            "raise the cgroup's cpu.max (docker run --cpus, Kubernetes' limits.cpu)",
        )
    else:
        yield ok("cpu quota", told)


def kernel(root: Path = _ROOT) -> Iterator[Finding]:
    """Try the kernel's features that libddl uses. A container's seccomp profile may forbid them."""
    filtered = "\nSeccomp:\t2" in _read(root / "proc/self/status")
    blame = (
        "a seccomp filter is active: allow it in the container's profile"
        if filtered
        else "the kernel is too old, or a security module forbids it"
    )
    tcp = "; ranks on this host use TCP, which is slower"
    tries: tuple[tuple[str, Callable[[], None], Callable[[str], Finding]], ...] = (
        ("sealed memfd", _try_memfd, lambda told: note("sealed memfd", told + tcp, blame)),
        (
            "abstract unix socket",
            _try_socket,
            lambda told: note("abstract unix socket", told + tcp, blame),
        ),
        ("timerfd", _try_timerfd, lambda told: wrong("timerfd", told, blame)),
        ("pidfd", _try_pidfd, lambda told: ok("pidfd", f"{told}; libddl works without it")),
    )
    for what, attempt, refused in tries:
        try:
            attempt()
        except (OSError, AttributeError) as error:
            yield refused(f"refused: {error}")
        else:
            yield ok(what, "usable")
    yield ok("seccomp", "a filter is active" if filtered else "no filter")


def _try_memfd() -> None:
    """Create, size and seal a memfd, map it twice, and read in one mapping what was written to the
    other."""
    fd = os.memfd_create("libddl-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, mmap.PAGESIZE)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        with mmap.mmap(fd, mmap.PAGESIZE) as one, mmap.mmap(fd, mmap.PAGESIZE) as other:
            one[:4] = b"ddl!"
            if other[:4] != b"ddl!":
                raise OSError("data written to one mapping is missing in the other")
    finally:
        os.close(fd)


def _try_socket() -> None:
    """Connect to an abstract socket name, and pass a descriptor."""
    name = f"\0libddl-doctor-{os.getpid()}-{time.monotonic_ns()}"
    with (
        socket.socket(socket.AF_UNIX) as listener,
        socket.socket(socket.AF_UNIX) as near,
        open(os.devnull, "rb") as passed,
    ):
        listener.bind(name)
        listener.listen(1)
        near.connect(name)
        far, _ = listener.accept()
        with far:
            rights = array.array("i", [passed.fileno()])
            near.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            _, more, _, _ = far.recvmsg(1, socket.CMSG_SPACE(rights.itemsize))
            if not more:
                raise OSError("no descriptor was passed")
            got = array.array("i")
            got.frombytes(more[0][2][: got.itemsize])
            os.close(got[0])


def _try_timerfd() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC | os.O_NONBLOCK)
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    os.close(fd)


def _try_pidfd() -> None:
    os.close(os.pidfd_open(os.getpid()))


def clock(root: Path = _ROOT) -> Iterator[Finding]:
    """Check the clock source and the cost of a reading."""
    path = root / "sys/devices/system/clocksource/clocksource0/current_clocksource"
    source = _read(path).strip() or "unknown"
    rounds = 1000
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(rounds):
            time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        best = min(best, (time.perf_counter() - start) / rounds)
    told = f"{source}, {show_seconds(best)} per reading from Python"
    if best > _CLOCK_SLOW and source not in _FAST_CLOCKS:
        yield note("clock", f"{told}: each reading is a system call", "boot with clocksource=tsc")
    else:
        yield ok("clock", told)


def _read(path: Path) -> str:
    """Return the text of a system file, or "" if it cannot be read."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
