# SPDX-License-Identifier: Apache-2.0
"""x86-64 and arm64 ranks in one job, the latter emulated by qemu-user."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import clean_environment

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).parent / "programs" / "mixed_processors.c"
COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
# Debian's packages gcc-aarch64-linux-gnu and qemu-user.
MISSING = [tool for tool in ("cmake", "cc", COMPILER, EMULATOR) if not shutil.which(tool)]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"there is no {' and no '.join(MISSING)}"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="this machine is not x86-64"),
]


def run(*command: str | Path, limit: float = 500) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
    return ended.stdout


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    folder = tmp_path_factory.mktemp("mixed")
    settings = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        "CMAKE_C_COMPILER": COMPILER,
        "DDL_TESTS": "OFF",
    }
    if shutil.which("ccache"):
        settings["CMAKE_C_COMPILER_LAUNCHER"] = "ccache"
    defined = [f"-D{name}={value}" for name, value in settings.items()]
    run("cmake", "-S", ROOT / "libddl", "-B", folder / "arm64", *defined)
    run("cmake", "--build", folder / "arm64", f"-j{os.cpu_count()}")
    run("cmake", "--install", folder / "arm64", "--prefix", folder / "installed")
    (library,) = folder.glob("installed/**/libddl.so")
    flags = ["-I", folder / "installed/include", f"-L{library.parent}", "-lddl"]
    run(COMPILER, PROGRAM, *flags, f"-Wl,-rpath,{library.parent}", "-o", folder / "on_arm64")
    own = run(sys.executable, "-m", "ddl_core", "--cflags", "--libs").split()
    run("cc", PROGRAM, *own, "-o", folder / "on_x86_64")
    return {
        "x86_64": [str(folder / "on_x86_64")],
        "arm64": [EMULATOR, "-L", "/usr/aarch64-linux-gnu", str(folder / "on_arm64")],
    }


@pytest.mark.parametrize("kinds", [["x86_64", "arm64", "x86_64"], ["arm64", "x86_64", "arm64"]])
def test_ranks_of_both_processors_have_equal_results(
    programs: dict[str, list[str]], kinds: list[str], find_port: Callable[[], int]
) -> None:
    common = {
        "DDL_SIZE": str(len(kinds)),
        "DDL_RENDEZVOUS": f"tcp://127.0.0.1:{find_port()}",
        "DDL_LINKS": "tcp",  # the link between hosts
        "DDL_DEAD_MS": "-1",  # an emulated rank may be silent for long
        "DDL_SUSPECT_MS": "-1",
    }
    ranks = [
        subprocess.Popen(
            programs[kind],
            env={**clean_environment(), **common, "DDL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, kind in enumerate(kinds)
    ]
    ended = [rank.communicate(timeout=300) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0], ended
    digests = [out.split()[-1] for out, _ in ended]
    assert [out.split(":")[0] for out, _ in ended] == [f"rank {r} of 3" for r in range(3)]
    assert len(set(digests)) == 1, ended
