# SPDX-License-Identifier: Apache-2.0
"""Test libddl on this machine's NVIDIA GPU, which all ranks share.

    python tests/real_gpu.py            all of it (make test-gpu)
    python tests/real_gpu.py c kills    only these parts; --list tells what there is

The programs are those that `make test` runs on stand-ins. Of ddl_core and ddl_torch the installed
ones are tested. The last line is the sum.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KILLS = int(os.environ.get("KILLS", "50"))
LIMIT = 240  # seconds for a program
TOLD_LIMIT = 0.3  # seconds after a kill


def driver_folder() -> str:
    """Return the driver's folder. Ends the program if there is none, or only a stand-in."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        sys.exit(f"there is no NVIDIA driver here: {error}")
    name, device = ctypes.create_string_buffer(256), ctypes.c_int()
    for function, *arguments in (
        ("cuInit", 0),
        ("cuDeviceGet", ctypes.byref(device), 0),
        ("cuDeviceGetName", name, len(name), 0),
    ):
        if result := getattr(driver, function)(*arguments):
            sys.exit(f"there is no GPU to test with: {function} gives {result}")
    if b"stand-in" in name.value:
        sys.exit("libcuda.so.1 is the stand-in; take its folder out of LD_LIBRARY_PATH")
    print(f"{name.value.decode()}: one GPU for all ranks", flush=True)
    maps = Path("/proc/self/maps").read_text()
    return str(Path(re.findall(r"(/\S*libcuda\.so\S*)", maps)[0]).parent)


def library_folders() -> list[str]:
    """Return the folders in which Python packages have NCCL, for the C programs."""
    spec = importlib.util.find_spec("nvidia")
    roots = (spec.submodule_search_locations or []) if spec else []
    found = [path for root in roots for path in Path(root).glob("*/lib/libnccl.so.2")]
    return sorted({str(path.parent) for path in found})


class Checks:
    """Runs programs, and counts them."""

    def __init__(self) -> None:
        folder = driver_folder()
        self._env = {
            **os.environ,
            # Before the stand-in, with which the C programs are linked.
            "LD_LIBRARY_PATH": os.pathsep.join(
                [folder, *library_folders(), os.environ.get("LD_LIBRARY_PATH", "")]
            ),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]),
        }
        self.passed = self.failed = 0

    def run(self, what: str, command: list[str], expect: str = "", **env: str) -> None:
        """Run the program. It must succeed, and print a text that matches `expect`."""
        code, out = self.execute(command, **env)
        self.count(what, code == 0 and re.search(expect, out) is not None, f"exit {code}\n{out}")

    def execute(self, command: list[str], **env: str) -> tuple[int, str]:
        """Return the exit code and the output; -1 after the time limit."""
        with tempfile.TemporaryDirectory() as folder:
            try:
                ended = subprocess.run(
                    command,
                    cwd=folder,
                    env={**self._env, **env},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    timeout=LIMIT,
                )
                return ended.returncode, ended.stdout.decode(errors="replace")
            except subprocess.TimeoutExpired as error:
                return -1, (error.stdout or b"").decode(errors="replace") + "\ntimed out"

    def count(self, what: str, good: bool, why: str) -> None:
        self.passed, self.failed = self.passed + good, self.failed + (not good)
        print(f"{'passed' if good else 'FAILED'}  {what}", flush=True)
        if not good:
            print("\n".join("  " + line for line in why.splitlines()[-40:]), flush=True)

    def ranks(self, size: int, *program: str) -> list[str]:
        return [sys.executable, "-m", "ddl_launch", "-n", str(size), *program]


def check_c(checks: Checks) -> None:
    """Run the C programs on 3 processes."""
    tree = ROOT / "build/gpu"
    built = tree / "tests/test_device"
    configure = ["cmake", "-S", str(ROOT / "libddl"), "-B", str(tree), "-DDDL_TESTS=ON"]
    checks.run("cmake", [*configure, "-DCMAKE_BUILD_TYPE=Release", "--log-level=WARNING"])
    build = ["cmake", "--build", str(tree), "--parallel", str(os.cpu_count() or 1)]
    programs = ("test_device", "test_device_blocks", "test_device_failures")
    checks.run("cmake --build", [*build, "--target", *programs])
    for test in (
        *("operations", "many chunks", "packed", "contexts"),
        *("first barrier", "stream order", "group", "completion", "refusals"),
    ):
        checks.run(f"test_device {test}", [str(built), test, "1"])
    for test in ("uneven", "ordered", "displaced", "nothing", "large"):
        checks.run(f"test_device_blocks {test}", [f"{built}_blocks", test])
    for test in ("death", "limit", "destroyed"):
        checks.run(f"test_device_failures {test}", [f"{built}_failures", test])


def check_core(checks: Checks) -> None:
    """Run the operations of ddl_core on raw memory of the driver, on 1 to 8 processes."""
    program = str(ROOT / "tests/core/programs/gpu.py")
    for links in ("shm", "tcp"):
        for size in (1, 2, 4, 8) if links == "shm" else (3,):
            what = f"ddl_core, {size} ranks, {links}"
            checks.run(what, checks.ranks(size, program), r"\[0\] compared", DDL_LINKS=links)


def check_torch(checks: Checks) -> None:
    """Run PyTorch's process groups, with tensors on the GPU."""
    if importlib.util.find_spec("torch") is None:
        sys.exit("there is no PyTorch here")
    checks.run("build of ddl_torch", [sys.executable, "-m", "ddl_torch", "build"])
    program = str(ROOT / "tests/adapters/programs/torch_cuda.py")
    for part in ("native", "python"):
        for size in (2, 4):
            env = {"DDL_TORCH_NATIVE": "1" if part == "native" else "0"}
            command = checks.ranks(size, program, "", part)
            checks.run(f"ddl_torch, {part}, {size} ranks", command, r"\[0\] compared", **env)
    own = checks.ranks(2, str(ROOT / "tests/adapters/programs/torch_cuda_own.py"), "")
    checks.run("the functions of ddl_torch, 2 ranks", own, r"\[0\] compared")


def check_jax(checks: Checks) -> None:
    """Run the operations of ddl_jax, if a JAX for this GPU is installed."""
    _, out = checks.execute([sys.executable, "-c", "import jax; print(jax.default_backend())"])
    if out.splitlines()[-1:] != ["gpu"]:
        print("skipped  ddl_jax: there is no JAX for CUDA here")
        return
    program = str(ROOT / "tests/adapters/programs/jax_operations.py")
    for size in (1, 2, 3):
        env = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        checks.run(f"ddl_jax, {size} ranks", checks.ranks(size, program), "checked", **env)


def check_elastic(checks: Checks) -> None:
    """Run elastic jobs of PyTorch, in which a worker is killed: the state is the same as
    undisturbed."""
    program = [str(ROOT / "tests/adapters/programs/torch_cuda_elastic.py"), "", "cuda"]
    ddl = [sys.executable, "-m", "ddl_launch.commands", "elastic", "run"]
    _, alone = checks.execute([*ddl, "-n", "1", *program, "-1"])
    expected = re.findall(r"state \w{64} cuda", alone)
    checks.count("an elastic job of one worker", len(expected) == 1, alone)
    for size in (2, 4):
        _, out = checks.execute([*ddl, "-n", str(size), *program, "1"])
        what = f"an elastic job of {size} workers, one of which is killed"
        found = re.findall(r"state \w{64} cuda", out)
        checks.count(what, found == expected and "died (SIGKILL); " in out, out)


def check_kills(checks: Checks) -> None:
    """Test kill -9 of one of 4 processes while the GPU works."""
    program = str(ROOT / "tests/core/programs/gpu_kills.py")
    times: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(KILLS):
            links = ("shm", "tcp")[number % 2]
            _, out = checks.execute(checks.ranks(4, program, f"{folder}/at"), DDL_LINKS=links)
            told = [float(each) for each in re.findall(r"told after ([\d.]+) s", out)]
            checks.count(f"kill {number + 1}, {links}: 3 go on", len(told) == 3, out)
            times += told
    worst = max(times, default=float("inf"))
    text = f"told after {worst:.3f} s at most, median {statistics.median(times or [0]):.3f} s"
    checks.count(text, worst < TOLD_LIMIT, f"the limit is {TOLD_LIMIT} s")


PARTS: dict[str, Callable[[Checks], None]] = {
    "c": check_c,
    "core": check_core,
    "torch": check_torch,
    "jax": check_jax,
    "elastic": check_elastic,
    "kills": check_kills,
}


def main(names: list[str]) -> int:
    if names == ["--list"]:
        for name, part in PARTS.items():
            print(f"{name:6} {part.__doc__}")
        return 0
    if unknown := [name for name in names if name not in PARTS]:
        sys.exit(f"no such part: {', '.join(unknown)}; there is: {', '.join(PARTS)}")
    checks = Checks()
    for name in names or PARTS:
        PARTS[name](checks)
    print(f"{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
