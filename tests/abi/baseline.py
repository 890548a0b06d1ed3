# SPDX-License-Identifier: Apache-2.0
"""The recorded ABI: the library's functions and the types that they use, as libabigail reads them.

    python tests/abi/baseline.py check     compare the library built from this tree with the record
    python tests/abi/baseline.py record    write the record anew (make abi-baseline)

The record is tests/abi/libddl.abi. It holds nothing of the machine that wrote it. The library is
built for it in build/abi with full debug information, which releases do not have.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECORD = Path(__file__).with_name("libddl.abi")
TREE = ROOT / "build" / "abi"
INCLUDE = ROOT / "libddl" / "include"
SKIPPED = 77  # the exit code if libabigail or CMake is missing

ADVICE = """
The ABI differs from its record. If programs compiled before would break, do not do it: append to
structs, give new symbols a node of their own in libddl.map. If the change is meant, run
`make abi-baseline` and commit the record with the change and an `abi:` line in CHANGELOG.md.
"""


def missing() -> list[str]:
    """Return the missing programs."""
    return [name for name in ("abidw", "abidiff", "cmake") if not shutil.which(name)]


def build() -> Path:
    """Build the library, and return its path."""
    settings = ["-DCMAKE_BUILD_TYPE=Debug", "-DDDL_TESTS=OFF", "--log-level=WARNING"]
    for command in (
        ["cmake", "-S", str(ROOT / "libddl"), "-B", str(TREE), *settings],
        ["cmake", "--build", str(TREE), "--parallel", "2"],
    ):
        done = subprocess.run(
            command, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        if done.returncode:
            raise SystemExit(done.stdout)
    return (TREE / "libddl.so").resolve()


def record(library: Path, output: Path = RECORD) -> None:
    """Write the output of abidw for the library, without paths."""
    command = ["abidw", "--exported-interfaces-only", "--drop-private-types", "--no-architecture"]
    command += ["--no-show-locs", "--no-corpus-path", "--no-comp-dir-path", "--no-elf-needed"]
    command += ["--type-id-style", "hash", "--headers-dir", str(INCLUDE), str(library)]
    text = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout
    output.write_text(re.sub(r" path='[^']*/src/", " path='src/", text))


def difference(library: Path, recorded: Path = RECORD) -> str:
    """Return the output of abidiff, "" if nothing differs. It compares records, because it would
    compare a library's private types as well."""
    with tempfile.TemporaryDirectory() as folder:
        now = Path(folder) / "now.abi"
        record(library, now)
        done = subprocess.run(
            ["abidiff", str(recorded), str(now)],
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    return done.stdout or f"abidiff exited with {done.returncode}" if done.returncode else ""


def main(arguments: list[str]) -> int:
    if arguments not in (["check"], ["record"]):
        print(__doc__)
        return 2
    if missing():
        print(f"not here: {', '.join(missing())} (Debian: abigail-tools cmake)")
        return SKIPPED
    library = build()
    if arguments == ["record"]:
        record(library)
        print(f"wrote {RECORD.relative_to(ROOT)}")
        return 0
    found = difference(library)
    print(found + ADVICE if found else "the ABI is as recorded")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
