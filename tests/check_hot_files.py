# SPDX-License-Identifier: Apache-2.0
"""The C files that a reader needs to follow one warm all-reduce of two ranks that share memory.

    python tests/check_hot_files.py          compare with docs/ARCHITECTURE.md, and with the limit
    python tests/check_hot_files.py --list   only print them

The library is compiled for gcov. A program repeats the operation and counts only the last one. A
file counts if any of its lines ran; src/base and headers do not count. Some lines run by chance: on
busy cores a rank may yield or sleep. So a file counts only if it ran in every one of several jobs.
Exit code 77: there is no gcov here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "libddl"
TABLE = ROOT / "docs" / "ARCHITECTURE.md"
SIZES = {"4 KiB": 4 << 10, "64 MiB": 64 << 20}
MOST = 10  # files
JOBS = 4  # jobs of each size
MORE_JOBS = 16  # if files ran that are not in the table, such as those of a sleep on busy cores
LIMIT = 120  # seconds for a job
CANNOT = 77

PROGRAM = r"""
#include <ddl/ddl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void __gcov_reset(void);
void __gcov_dump(void);

int main(int argc, char **argv)
{
    ddl_endpoint *endpoint;
    ddl_comm *comm;
    ddl_status status = ddl_endpoint_create(NULL, &endpoint);
    int64_t count = argc > 1 ? atoll(argv[1]) / 4 : 0;
    float *data = calloc((size_t)count, sizeof *data);
    if (!status)
        status = ddl_rendezvous(endpoint, NULL, -1, 0, NULL, &comm);
    int last = count > 1 << 20 ? 19 : 19999; /* after the creation's last background work */
    for (int i = 0; data && !status && i <= last; i++) {
        if (i == last)
            __gcov_reset();
        status = ddl_allreduce(comm, NULL, data, count, DDL_F32, DDL_SUM, NULL, NULL);
    }
    __gcov_dump();
    if (!data || status)
        fprintf(stderr, "%s\n", ddl_last_error());
    _exit(!data || status);
}
"""


def flags(source: Path) -> list[str]:
    """Return the flags that this file needs besides the common ones: the same as in
    libddl/CMakeLists.txt."""
    return {
        "avx2.c": ["-mavx2", "-mf16c"],
        "avx512.c": [f"-mavx512{x}" for x in ("f", "bw", "vl", "dq")] + ["-mf16c"],
    }.get(source.name, [])


def build(folder: Path) -> None:
    """Compile the library and the program for gcov, as folder/program."""
    x86 = os.uname().machine == "x86_64"
    others = ("neon.c",) if x86 else ("avx2.c", "avx512.c")
    (folder / "program.c").write_text(PROGRAM)
    sources = [s for s in sorted(LIBRARY.glob("src/**/*.c")) if s.name not in others]
    common = ["-std=c11", "-D_GNU_SOURCE", "-O1", "--coverage", "-ffp-contract=off"]
    common += [f"-I{LIBRARY}/include", f"-I{LIBRARY}/src"]

    def compile_one(source: Path) -> str:
        target = f"{source.parent.name}_{source.stem}.o"
        command = ["gcc", *common, *flags(source), "-c", str(source), "-o", target]
        subprocess.run(command, cwd=folder, check=True)
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, [*sources, folder / "program.c"]))
    link = ["gcc", "--coverage", *objects, "-o", "program", "-pthread", "-ldl"]
    subprocess.run(link, cwd=folder, check=True)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def run_job(folder: Path, nbytes: int) -> set[str]:
    """Return the files that two ranks ran, with their folders below libddl/src."""
    with tempfile.TemporaryDirectory(dir=folder) as counts:
        env = {
            **os.environ,
            "DDL_RENDEZVOUS": f"tcp://127.0.0.1:{free_port()}",
            "DDL_SIZE": "2",
            "DDL_HEARTBEAT_MS": "3000",  # without the detector's files
            "DDL_SUSPECT_MS": "20000",
            "DDL_DEAD_MS": "60000",
            "GCOV_PREFIX": counts,
            "GCOV_PREFIX_STRIP": "99",
        }
        command = [str(folder / "program"), str(nbytes)]
        ranks = [subprocess.Popen(command, env={**env, "DDL_RANK": str(r)}) for r in range(2)]
        try:
            codes = [rank.wait(LIMIT) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        if any(codes):
            raise SystemExit(f"the job failed: exit codes {codes}")
        for notes in folder.glob("*.gcno"):
            (Path(counts) / notes.name).symlink_to(notes)
        data = [p.name for p in Path(counts).glob("*.gcda")]
        command = ["gcov", "--json-format", "--stdout", *data]
        out = subprocess.run(command, cwd=counts, check=True, capture_output=True, text=True)
    met = set()
    for report in filter(None, out.stdout.splitlines()):
        for file in json.loads(report)["files"]:
            name = file["file"].rpartition("/src/")[2]
            if name.endswith(".c") and any(line["count"] for line in file["lines"]):
                met.add(name)
    return {n for n in met if re.fullmatch(r"\w+(/\w+)+\.c", n) and not n.startswith("base/")}


def documented() -> dict[str, set[str]]:
    """Return the table in docs/ARCHITECTURE.md: for each size, its files."""
    rows = re.findall(r"^\| `([\w/]+\.c)` \|.*\| ([^|]+) \|$", TABLE.read_text(), re.M)
    return {size: {name for name, when in rows if when in (size, "both")} for size in SIZES}


def main(arguments: list[str]) -> None:
    """Measure and print the files, and compare them unless only listing."""
    if not shutil.which("gcov") or not shutil.which("gcc"):
        print("skipped: there is no gcc with gcov")
        sys.exit(CANNOT)
    wrong = []
    table = documented()
    with tempfile.TemporaryDirectory() as name:
        build(Path(name))
        for size, nbytes in SIZES.items():
            met = set.intersection(*(run_job(Path(name), nbytes) for _ in range(JOBS)))
            for _ in range(MORE_JOBS):
                if met <= table[size]:
                    break
                met &= run_job(Path(name), nbytes)
            print(f"{size}: {len(met)} files: {', '.join(sorted(met))}")
            if len(met) > MOST:
                wrong.append(f"{size}: a reader meets {len(met)} files, at most {MOST} are wanted")
            if met != table[size]:
                differ = ", ".join(sorted(met ^ table[size]))
                wrong.append(f"{size}: {TABLE.name} differs about {differ}")
    if wrong and arguments != ["--list"]:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main(sys.argv[1:])
