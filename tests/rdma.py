# SPDX-License-Identifier: Apache-2.0
"""Run ranks over soft-RoCE (Linux's rdma_rxe) in an emulated machine, and check what they print.

QEMU emulates the machine without KVM, so no RDMA hardware and no rights are needed. Its kernel, UCX
and the RDMA libraries are packages of the Debian that runs this, kept in build/rdma.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(__file__).resolve().parents[1] / "build" / "rdma"
BASE = CACHE / "base"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
TOOLS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "depmod": "kmod",
    "cpio": "cpio",
    "apt-get": "apt",
    "dpkg": "dpkg",
}
PACKAGES = (
    *("libucx0", "libibverbs1", "ibverbs-providers", "librdmacm1", "iproute2"),
    *("libnl-3-200", "libnl-route-3-200", "libnuma1", "libmnl0", "libbpf1", "libelf1"),
    *("libcap2", "libbsd0", "libmd0", "libxtables12"),
)
# Without crc32_generic `rdma link add` fails.
MODULES = ("crc32_generic", "e1000", "ib_uverbs", "rdma_rxe", "rdma_ucm")

INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/sbin:/usr/sbin:/usr/bin:/bin
export LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu:/lib/x86_64-linux-gnu
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev
mkdir -p /dev/shm; mount -t tmpfs tmpfs /dev/shm; mount -t tmpfs tmpfs /tmp
for module in $(cat /modules/order); do insmod /modules/$module; done
hostname emulated; ifconfig lo up; ifconfig eth0 10.0.0.1 netmask 255.255.255.0 up; sleep 2
rdma link add rxe0 type rxe netdev eth0; rdma link
ulimit -l unlimited
cd /tests; sh ./run.sh; poweroff -f
"""


@dataclass(frozen=True)
class Run:
    """A command in the machine, with the text that it must print and its exit status."""

    name: str
    variables: str
    command: str
    expected: str
    status: int = 0
    limit: int = 240  # seconds in the machine, whose clock may be slower than the host's


# By itself UCX chooses the GID of the IPv4 address, on which rdma_rxe does not reach its own host.
RIGHT, WRONG = "UCX_IB_GID_INDEX=0", "UCX_IB_GID_INDEX=1"
IDLE = 40  # seconds; longer than UCX's time limit for a peer, 30 s


def ranks(size: int, idle: int = 0) -> str:
    """Return a command that runs ranks, and fails if one of them does."""
    start = f"DDL_RANK=$r DDL_SIZE={size} DDL_RENDEZVOUS=tcp://127.0.0.1:29400 ./rdma_rank {idle}"
    loop = f'for r in $(seq 0 {size - 1}); do {start} & pids="$pids $!"; done'
    return f"{loop}; for p in $pids; do wait $p || failed=1; done; exit $failed"


def falls_back(name: str, variables: str, idle: int = 0) -> Run:
    """Return a run whose ranks must continue over TCP."""
    expected = "use TCP instead of UCX: .* does not reach .*rank . of 4 has added"
    return Run(name, f"DDL_LINKS=tcp,ucx {variables}", ranks(4, idle), expected)


RUNS = (
    Run("fabric", f"DDL_TEST_UCX=1 UCX_TLS=rc_v {RIGHT}", "./test_fabric", r"killed .*killed "),
    Run(
        "messages",
        f"DDL_TEST_UCX=1 UCX_TLS=rc_v {RIGHT}",
        "./test_messages tcp ping_pong",
        "ping_pong",
    ),
    Run(
        "ranks",
        f"DDL_LINKS=ucx DDL_LOG=info UCX_TLS=rc_v {RIGHT}",
        ranks(4),
        "uses UCX .*rank . of 4 has added",
    ),
    Run(
        "wrong_gid_refused",
        f"DDL_LINKS=ucx {WRONG} UCX_TLS=rc_v",
        ranks(2),
        r"rank \d on .* cannot use UCX: it does not reach rank \d on ",
        1,
    ),
    Run("fork_copies", f"DDL_TEST_UCX=1 UCX_TLS=rc_v {RIGHT}", "./test_fork_copies", "ucx"),
    Run("detection", f"DDL_TEST_UCX=1 UCX_TLS=rc_v {RIGHT}", "./test_detection", "stopped"),
    falls_back("chosen_gid_rc", "UCX_TLS=rc_v", IDLE),
    falls_back("wrong_gid_ud", f"{WRONG} UCX_TLS=ud_v", IDLE),
    falls_back("wrong_gid_all", f"{WRONG} UCX_TLS=all"),
    # The last run, because the network stays down. TCP continues over the loopback interface.
    Run(
        "device_down",
        f"DDL_LINKS=ucx DDL_LOG=info DDL_INTERFACES=lo UCX_TLS=rc_v {RIGHT}",
        f"(sleep {IDLE // 2}; ip link set eth0 down) & {ranks(2, IDLE)}",
        "uses UCX .*UCX",
        1,
    ),
)


def unpack_base() -> None:
    """Unpack Debian's packages, and list the kernel's modules in the order of their loading."""
    shutil.rmtree(CACHE, ignore_errors=True)
    (CACHE / "debs").mkdir(parents=True)
    depends = subprocess.run(
        ["apt-cache", "depends", "linux-image-amd64"], check=True, capture_output=True, text=True
    ).stdout
    kernel = re.findall(r"Depends: (linux-image-\S+)", depends)[0]
    fetch = ["apt-get", "download", "-q", kernel, *PACKAGES]
    subprocess.run(fetch, cwd=CACHE / "debs", check=True, stdout=subprocess.DEVNULL)
    for package in (CACHE / "debs").iterdir():
        root = CACHE / "kernel" if package.name.startswith("linux-image") else BASE
        subprocess.run(["dpkg", "-x", package, root], check=True)
    for folder in ("bin", "dev", "proc", "sys", "tmp", "modules"):
        (BASE / folder).mkdir(exist_ok=True)
    shutil.copy(str(shutil.which("busybox")), BASE / "bin" / "busybox")
    copy_modules()
    programs = [BASE / "usr" / "bin" / "rdma", *(BASE / LIBRARIES).rglob("*.so*")]
    copy_libraries(programs, BASE)
    pack(BASE, CACHE / "base.cpio.gz")
    (CACHE / "ready").touch()


def copy_modules() -> None:
    """Copy the modules, and write their order."""
    version = next((CACHE / "kernel" / "lib" / "modules").iterdir()).name
    subprocess.run(["depmod", "-b", CACHE / "kernel", version], check=True)
    order: list[str] = []
    for module in MODULES:
        show = ["modprobe", "-d", str(CACHE / "kernel"), "-S", version, "--show-depends", module]
        shown = subprocess.run(show, check=True, capture_output=True, text=True).stdout
        for path in re.findall(r"^insmod (\S+)", shown, re.MULTILINE):
            if Path(path).name not in order:
                shutil.copy(path, BASE / "modules")
                order.append(Path(path).name)
    (BASE / "modules" / "order").write_text("\n".join(order) + "\n")


def copy_libraries(programs: Iterable[Path], root: Path) -> None:
    """Copy the libraries of this machine that the programs need and `BASE` lacks."""
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": f"{BASE / LIBRARIES}:{BASE}/lib/x86_64-linux-gnu",
    }
    for program in programs:
        listed = subprocess.run(["ldd", program], env=environment, capture_output=True, text=True)
        for path in re.findall(r"(?:=> |^\s*)(/\S+) \(", listed.stdout, re.MULTILINE):
            place = root / path[1:]
            if not path.startswith(str(BASE)) and not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, place)


def pack(folder: Path, archive: Path) -> None:
    """Write the folder as a compressed archive for the kernel's first file system."""
    command = f"find . | cpio -o -H newc --quiet | gzip -1 >'{archive}'"
    subprocess.run(["sh", "-c", command], cwd=folder, check=True)


def prepare_tests(programs: Path, runs: Iterable[Run]) -> Path:
    """Add the programs and the script of the runs. Return the whole archive."""
    root = CACHE / "tests"
    shutil.rmtree(root, ignore_errors=True)
    (root / "tests").mkdir(parents=True)
    (root / "init").write_text(INIT)
    (root / "init").chmod(0o755)
    script = ""
    for run in runs:
        (root / "tests" / f"{run.name}.sh").write_text(run.command + "\n")
        script += f"echo '== begin {run.name}'\n"
        script += f"env {run.variables} timeout {run.limit} sh {run.name}.sh 2>&1\n"
        script += f"echo '== end {run.name}' $?\n"
    (root / "tests" / "run.sh").write_text(script)
    names = sorted({name for run in runs for name in re.findall(r"\./(\w+)", run.command)})
    for name in names:
        subprocess.run(["strip", "-o", root / "tests" / name, programs / name], check=True)
    copy_libraries([programs / name for name in names], root)
    pack(root, CACHE / "tests.cpio.gz")
    whole = CACHE / "initrd.gz"
    whole.write_bytes(
        (CACHE / "base.cpio.gz").read_bytes() + (CACHE / "tests.cpio.gz").read_bytes()
    )
    return whole


def boot(initrd: Path, limit: float) -> str:
    """Run the machine until it ends, and return what it printed."""
    kernel = next((CACHE / "kernel" / "boot").glob("vmlinuz-*"))
    command = ["qemu-system-x86_64", "-accel", "tcg", "-smp", "2", "-m", "1500", "-nographic"]
    command += ["-no-reboot", "-kernel", str(kernel), "-initrd", str(initrd)]
    command += ["-append", "console=ttyS0 quiet", "-nic", "user,model=e1000,restrict=on"]
    printed = CACHE / "console"
    with (
        printed.open("w") as console,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT
        ) as machine,
    ):
        try:
            machine.wait(limit)
        except subprocess.TimeoutExpired:
            machine.kill()
    return printed.read_text(errors="replace").replace("\r", "")


def failure(run: Run, console: str) -> str:
    """Return why the run has failed, or ""."""
    match = re.search(rf"== begin {run.name}\n(.*?)== end {run.name} (\d+)", console, re.DOTALL)
    if not match:
        return "did not end"
    text, status = match[1], int(match[2])
    if status != run.status:
        return f"exit status {status} instead of {run.status}\n{text}"
    if not re.search(run.expected, text, re.DOTALL):
        return f"prints nothing like {run.expected!r}\n{text}"
    return ""


def main() -> int:
    """Run the tests, or those named. Return 1 if one of them fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", type=Path, help="the folder of the built test programs")
    parser.add_argument("runs", nargs="*", metavar="RUN", help="the names of the runs to make")
    parser.add_argument("--limit", type=float, default=1500, help="seconds for all of them")
    arguments = parser.parse_args()
    if unknown := set(arguments.runs) - {run.name for run in RUNS}:
        parser.error(f"no run {' '.join(sorted(unknown))}; runs: {' '.join(r.name for r in RUNS)}")
    missing = sorted({package for tool, package in TOOLS.items() if not shutil.which(tool)})
    if missing:
        print(f"SKIPPED: install Debian's {' '.join(missing)}")
        return 0
    if not (CACHE / "ready").exists():
        unpack_base()
    runs = [run for run in RUNS if run.name in (arguments.runs or [run.name])]
    start = time.monotonic()
    console = boot(prepare_tests(arguments.programs, runs), arguments.limit)
    failures = {run.name: failure(run, console) for run in runs}
    for name, why in failures.items():
        print(f"{name}: {why or 'passed'}")
    print(f"{time.monotonic() - start:.0f} s; all that the machine printed: {CACHE / 'console'}")
    return any(failures.values())


if __name__ == "__main__":
    sys.exit(main())
