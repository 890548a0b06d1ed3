# SPDX-License-Identifier: Apache-2.0
"""Fuzz libddl: each target of libddl/fuzz for its share of $FUZZ_SECONDS, 60 in all by default, on
as many cores at a time as there are.

    python tests/fuzz.py               all targets
    python tests/fuzz.py hello         only these

Needs clang with libFuzzer, else exits with 77. What a target finds by the way stays in
build/fuzz/corpus and is where the next run starts; libddl/fuzz/corpus is read and never written. An
input that fails lies in build/fuzz/findings. Whole outputs are in build/fuzz/logs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SEEDS = ROOT / "libddl" / "fuzz" / "corpus"
BUILD = ROOT / "build" / "fuzz"
SKIPPED = 77
SHOWN_LINES = 60
SECONDS_PER_INPUT = 10

OPTIONS = [
    "-max_len=1024",
    f"-timeout={SECONDS_PER_INPUT}",
    "-rss_limit_mb=2048",
    "-print_final_stats=1",
]
SANITIZERS = {
    "ASAN_OPTIONS": "detect_stack_use_after_return=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
}


def have_libfuzzer() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "empty.c")
        source.write_text("int LLVMFuzzerTestOneInput(const char *b, long n) { return !b && n; }\n")
        flags = ["-fsanitize=fuzzer,address,undefined", str(source), "-o", f"{folder}/empty"]
        try:
            return subprocess.run(["clang", *flags], capture_output=True).returncode == 0
        except OSError:
            return False


def build() -> None:
    tree = str(BUILD / "tree")
    sanitize = "-DDDL_SANITIZE=fuzzer-no-link,address,undefined"
    settings = [
        "-DCMAKE_C_COMPILER=clang",
        "-DCMAKE_BUILD_TYPE=Release",
        "-DDDL_TESTS=ON",
        sanitize,
    ]
    quiet = ["--log-level=WARNING", "-DCMAKE_RULE_MESSAGES=OFF"]
    subprocess.run(["cmake", "-S", ROOT / "libddl", "-B", tree, *settings, *quiet], check=True)
    jobs = str(os.cpu_count() or 1)
    subprocess.run(
        ["cmake", "--build", tree, "--target", "fuzz_targets", "--parallel", jobs], check=True
    )


def summary(output: str) -> str:
    """Return the result in words, from libFuzzer's last lines."""
    inputs = re.search(r"number_of_executed_units:\s*(\d+)", output)
    rate = re.search(r"average_exec_per_sec:\s*(\d+)", output)
    edges = re.findall(r"\bcov: (\d+)", output)
    if not (inputs and rate and edges):
        return "no statistics"
    return f"{inputs[1]:>9} inputs, {rate[1]:>6} a second, {edges[-1]:>4} edges"


def failure(output: str) -> str:
    """Return the output from the first line that reports an error."""
    lines = output.splitlines()
    signs = r"runtime error|ERROR:|fuzz_\w+\.c:\d+: "
    first = next((i for i, line in enumerate(lines) if re.search(signs, line)), 0)
    return "\n".join("  " + line for line in lines[first : first + SHOWN_LINES])


def fuzz(what: str, seconds: int) -> bool:
    corpus, findings, logs = BUILD / "corpus" / what, BUILD / "findings", BUILD / "logs"
    for folder in (corpus, findings, logs):
        folder.mkdir(parents=True, exist_ok=True)
    program = BUILD / "tree" / "fuzz" / f"fuzz_{what}"
    limit = seconds + 10 * SECONDS_PER_INPUT
    log = logs / f"{what}.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [
                program,
                f"-max_total_time={seconds}",
                f"-artifact_prefix={findings.relative_to(ROOT)}/{what}-",
                *OPTIONS,
                corpus,
                SEEDS / what,
            ],
            cwd=ROOT,
            env={**os.environ, **SANITIZERS},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            code = process.wait(limit)
        except BaseException as error:
            process.kill()
            process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            out.write(f"fuzz.py: ERROR: killed after {limit} s\n")
            code = 124
    output = log.read_text(errors="replace")
    lines = [f"{what:12} {summary(output) if code == 0 else f'FAILED with {code}'}"]
    if code:
        lines.append(failure(output))
        written = re.search(r"Test unit written to (\S+)", output)
        if written:
            lines.append(f"  again: {program.relative_to(ROOT)} {written[1]}")
        lines.append(f"  whole output: {log.relative_to(ROOT)}")
    print("\n".join(lines), flush=True)  # at once, since other threads print as well
    return code == 0


def main(names: list[str]) -> int:
    everything = sorted(f.stem.removeprefix("fuzz_") for f in SEEDS.parent.glob("fuzz_*.c"))
    unknown = [name for name in names if name not in everything]
    if unknown:
        print(f"no such target: {', '.join(unknown)}; there is: {', '.join(everything)}")
        return 2
    if not have_libfuzzer():
        print("skipped: no clang with libFuzzer (Debian: clang libclang-rt-14-dev)")
        return SKIPPED
    try:
        build()
    except (OSError, subprocess.CalledProcessError) as error:
        print(error)
        return 1
    targets = names or everything
    seconds = max(1, int(os.environ.get("FUZZ_SECONDS", "60")) // len(targets))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        passed = sum(pool.map(fuzz, targets, [seconds] * len(targets)))
    print(f"{passed} passed, {len(targets) - passed} failed")
    return 1 if passed < len(targets) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
