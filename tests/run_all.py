# SPDX-License-Identifier: Apache-2.0
"""Run the project's checks, stage by stage, and sum them up.

    python tests/run_all.py            all stages of `make test`, two at a time where they allow it
    python tests/run_all.py c asan     only these
    python tests/run_all.py --quick    those of `make check`, two at a time
    python tests/run_all.py --list     what there is

Each stage gives one line: what ran, how many checks passed, how long it took. Its whole output goes
to build/logs/STAGE.log (follow it with tail -f), and when it fails to the terminal. A failing stage
does not stop the next. The last line is the sum, and the exit code is 0 only if nothing failed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "logs"
BIN = Path(sys.prefix) / "bin"
SHOWN_LINES = 150
SKIPPED = 77  # the exit code of a check that cannot run here
# The stages of a lane run one after the other, and the lanes at the same time. `make check`:
QUICK = (
    ("c-quick", "py-quick"),
    (
        *("layers", "spdx", "words", "commits", "spelling"),
        *("ruff", "mypy", "clang-format", "shellcheck"),
    ),
)
# `make test`: the second lane runs in the time that the Python tests leave. The other stages follow
# alone, since their ranks keep all cores busy or have short limits.
BESIDE = (
    ("py",),
    (*QUICK[1], "c-build", "asan-build", "tsan-build", "fuzz", "docs", "arm64"),
)
PY_LIMIT = 2700  # seconds for py, and for what is built beside it
PURE = "pytestmark = pytest.mark.pure"  # in a file of tests that py-quick runs


@dataclass
class Count:
    passed: int = 0
    failed: int = 0
    skipped: int = 0


@dataclass
class Stage:
    """Commands run one after the other until one fails. `count` reads their output; without it the
    stage is one check."""

    what: str
    commands: list[list[str]]
    count: Callable[[str], Count] | None = None
    env: dict[str, str] = field(default_factory=dict)
    needs: str = ""  # the program without which the stage is skipped
    limit: int = 900  # seconds
    named: bool = False  # it runs only when it is asked for


# "12/34 Test #12: test_plan ......   Passed    0.01 sec", or "***Failed", "***Timeout" and others.
CTEST_START = re.compile(r"^ *Start +(\d+): ", re.M)
CTEST_RESULT = re.compile(
    r"^ *\d+/\d+ Test +#(\d+): .*?\.\.+(?:\*\*\*| +)(\w.*?) +[\d.]+ sec", re.M
)


def count_ctest(output: str) -> Count:
    """Count all tests that were started, even if CTest printed no summary. A test that was stopped
    together with CTest has no result and has failed."""
    total = Count()
    for run in re.split(r"^Test project ", output, flags=re.M)[1:]:
        results = dict(CTEST_RESULT.findall(run))
        for number in CTEST_START.findall(run):
            result = results.get(number, "stopped")
            if result == "Passed":
                total.passed += 1
            elif result in ("Skipped", "Not Run (Disabled)"):
                total.skipped += 1
            else:
                total.failed += 1
    return total


def count_pytest(output: str) -> Count:
    """Read the closing line, as in '2 failed, 30 passed, 1 skipped in 4.02s'."""
    total = Count()
    closing = [line for line in output.splitlines() if re.search(r" in \d+\.\d+s", line)]
    for number, word in re.findall(r"(\d+) (\w+)", closing[-1] if closing else ""):
        if word == "passed":
            total.passed += int(number)
        elif word in ("failed", "error", "errors"):
            total.failed += int(number)
        elif word == "skipped":
            total.skipped += int(number)
    return total


def count_lines(output: str) -> Count:
    """Sum over lines 'N passed, N failed'."""
    total = Count()
    for passed, failed in re.findall(r"(\d+) passed, (\d+) failed", output):
        total.passed += int(passed)
        total.failed += int(failed)
    return total


def sources(*suffixes: str) -> list[str]:
    """Return the tree's files with these suffixes, without built or hidden files."""
    found = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = sorted(f for f in folders if f not in ("build", "dist") and f[0] != ".")
        found += [str(Path(folder, f).relative_to(ROOT)) for f in sorted(files)]
    return [f for f in found if Path(f).suffix in suffixes]


def texts() -> list[str]:
    """Return the sources and documents, without recorded data."""
    return sources(".c", ".h", ".cpp", ".hpp", ".py", ".pyi", ".sh", ".md", ".toml", ".yml")


def tool(name: str) -> str:
    """Return a tool of the virtual environment, otherwise of the machine."""
    return str(BIN / name) if (BIN / name).exists() else name


def quick_c_tests() -> list[list[str]]:
    """Build the C library, its modules of Python and the quick C tests in build/check; run these.

    build/check/python then has the packages as .venv-check imports them: links to the sources, so
    that an edit needs no installation, and the modules that were built.
    """
    tree, packages = "build/check", "build/check/python"
    settings = ["-DDDL_TESTS=ON", "-DDDL_TESTS_SAMPLE=quick", "-DDDL_WERROR=ON"]
    settings += ["-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_C_FLAGS_DEBUG=-O1 -g1"]  # quick to compile
    settings += [f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_RULE_MESSAGES=OFF"]
    cores = os.cpu_count() or 1
    ctest = ["ctest", "--test-dir", f"{tree}/libddl", "--parallel", str(4 * cores), "-L", "quick"]
    linked = [str(path) for pattern in ("ddl*", "adapters/ddl_*") for path in ROOT.glob(pattern)]
    return [
        ["cmake", "-S", "ddl_core", "-B", tree, *settings, "--log-level=WARNING"],
        ["cmake", "--build", tree, "--parallel", str(cores)],
        ["cmake", "-E", "rm", "-rf", packages],
        ["cmake", "--install", tree, "--prefix", packages],
        ["cp", "-rs", *linked, packages],
        [*ctest, "--output-on-failure", "--no-tests=error"],
    ]


def pure_tests() -> list[str]:
    """Return the files of tests that need no framework and start no process."""
    marked = [path for path in ROOT.glob("tests/**/test_*.py") if PURE in path.read_text()]
    return sorted(str(path.relative_to(ROOT)) for path in marked)


def c_tests(
    kind: str, sanitize: str = "", wrap: Sequence[str] = (), sample: bool = False
) -> list[list[str]]:
    """Configure, build and run the C tests in build/KIND: all, or those that `make test` runs."""
    tree = f"build/{kind}"
    settings = ["-DCMAKE_BUILD_TYPE=Release", "-DDDL_TESTS=ON", "-DDDL_WERROR=ON"]
    settings.append(f"-DDDL_SANITIZE={sanitize}")
    settings.append(f"-DDDL_TESTS_SAMPLE={'ON' if sample else 'OFF'}")
    quiet = ["--log-level=WARNING", "-DCMAKE_RULE_MESSAGES=OFF"]
    cores = os.cpu_count() or 1
    quarters = str(4 * cores)  # the unit in which libddl/tests/CMakeLists.txt counts tests
    ctest = ["ctest", "--test-dir", tree, "--parallel", quarters]
    if sample:
        ctest += ["--label-exclude", "all-only"]
    return [
        ["cmake", "-S", "libddl", "-B", tree, *settings, *quiet],
        ["cmake", "--build", tree, "--parallel", str(cores)],
        [*wrap, *ctest, "--output-on-failure", "--no-tests=error"],
    ]


def only_built(sample: Stage) -> Stage:
    """Return the stage that runs the commands of a sample but its last one, the tests."""
    what = sample.what.replace("a sample", "built")
    return Stage(what, sample.commands[:-1], limit=PY_LIMIT, named=True)


def fixed_addresses() -> list[str]:
    """GCC 12's TSan cannot start where the kernel randomizes mappings over many bits ("unexpected
    memory mapping"), so its programs run without randomization where that is permitted."""
    command = ["setarch", "-R"]
    try:
        subprocess.run([*command, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return command


def asan(sample: bool = False) -> Stage:
    return Stage(
        f"C tests under ASan and UBSan{', a sample' if sample else ''}",
        c_tests("asan", "address,undefined", sample=sample),
        count_ctest,
        env={
            "ASAN_OPTIONS": "detect_stack_use_after_return=1:strict_string_checks=1",
            "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        },
        limit=1800,
        named=not sample,
    )


def tsan(sample: bool = False) -> Stage:
    return Stage(
        f"C tests under TSan{', a sample' if sample else ''}",
        c_tests("tsan", "thread", fixed_addresses(), sample),
        count_ctest,
        env={
            "TSAN_OPTIONS": f"suppressions={ROOT}/tests/tsan.supp:second_deadlock_stack=1"
            ":halt_on_error=1:atexit_sleep_ms=0"
        },
        limit=1800,
        named=not sample,
    )


def stages() -> dict[str, Stage]:
    python = sys.executable
    # A worker for each core, of which a few are enough, and a file's tests one after the other in
    # one of them; the adapters' files, which take longest, are among the first.
    workers = ["--numprocesses", str(min(os.cpu_count() or 1, 4)), "--dist=loadfile"]
    pytest = [tool("pytest"), "-q", *workers, "--no-loadscope-reorder"]
    site = ["-c", "docs/site", "docs", "build/docs"]
    c_sample = Stage("C tests, Release, a sample", c_tests("release", sample=True), count_ctest)
    return {
        "layers": Stage("who includes whom", [[python, "tests/check_layers.py"]]),
        "spdx": Stage("each source names its licence", [[python, "tests/check_spdx.py"]]),
        "words": Stage("no private words", [[python, "tests/check_words.py"]]),
        "commits": Stage("subjects of commits", [[python, "tests/check_commits.py"]]),
        "spelling": Stage("spelling", [[tool("codespell"), *texts()]]),
        "hot-files": Stage(
            "what a reader of an all-reduce meets",
            [[python, "tests/check_hot_files.py"]],
            needs="gcov",
        ),
        "ruff": Stage(
            "Python lint and format",
            [[tool("ruff"), "check", "."], [tool("ruff"), "format", "--check", "."]],
        ),
        "mypy": Stage("Python types, strict", [[tool("mypy")]]),
        "clang-format": Stage(
            "C and C++ format",
            [[tool("clang-format"), "--dry-run", "-Werror", *sources(".c", ".h", ".cpp", ".hpp")]],
        ),
        "shellcheck": Stage(
            "shell scripts",
            [[tool("shellcheck"), ".ci/run", "packaging/commit-msg", *sources(".sh")]],
            needs=tool("shellcheck"),
        ),
        "c-quick": Stage("C tests, the quick ones", quick_c_tests(), count_ctest, named=True),
        "py-quick": Stage(
            "pytest of what is pure",
            [[*pytest, "-m", "pure and not slow", *pure_tests()]],
            count_pytest,
            named=True,
        ),
        "c": Stage("C tests, Release", c_tests("release"), count_ctest, named=True),
        "asan": asan(),
        "tsan": tsan(),
        "c-build": only_built(c_sample),
        "asan-build": only_built(asan(sample=True)),
        "tsan-build": only_built(tsan(sample=True)),
        "c-sample": c_sample,
        "asan-sample": asan(sample=True),
        "tsan-sample": tsan(sample=True),
        "fuzz": Stage(
            "what comes from the wire, fuzzed",
            [[python, "tests/fuzz.py"]],
            count_lines,
            limit=PY_LIMIT + int(os.environ.get("FUZZ_SECONDS", "60")),
        ),
        "chaos": Stage(
            "real faults, a sample of them",
            [[python, "tests/chaos/run.py", "--short"]],
            count_lines,
        ),
        "arm64": Stage(
            "NEON kernels, cross-built, under qemu",
            [["sh", "libddl/tests/arm64.sh"]],
        ),
        "py": Stage(
            "pytest",
            [[*pytest, "--durations=60", "tests"]],
            count_pytest,
            limit=PY_LIMIT,
        ),
        "docs": Stage(
            "the site, without a warning",
            [
                ["doxygen", "docs/api/Doxyfile"],
                [tool("sphinx-build"), "-qEW", "--keep-going", *site],
            ],
            needs="doxygen",
        ),
    }


interrupted = threading.Event()  # the main thread was, while stages run at the same time


def wait(process: subprocess.Popen[bytes], deadline: float) -> int:
    """Return the exit code. Raises TimeoutExpired after the deadline."""
    while not interrupted.is_set():
        try:
            return process.wait(min(1.0, max(0.01, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            if time.monotonic() >= deadline:
                raise
    raise KeyboardInterrupt


def run(name: str, stage: Stage) -> tuple[Count, str]:
    """Run one stage, and return its count and its output."""
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{name}.log"
    deadline = time.monotonic() + stage.limit
    # The variables that `make test` gives its children are not for the make that CMake starts.
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    code = 0
    with log.open("w") as out:
        for command in stage.commands:
            text = "$ " + " ".join(command)
            out.write((text if len(text) < 200 else text[:200] + " ...") + "\n")
            out.flush()
            try:
                process = subprocess.Popen(
                    command,
                    cwd=ROOT,
                    env={**env, **stage.env},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                out.write(f"cannot run {command[0]}: {error.strerror}\n")
                if command[0] in ("cmake", "ctest"):
                    out.write("install it (Debian: apt install cmake; Fedora: dnf install cmake)\n")
                code = 127
                break
            try:
                code = wait(process, deadline)
            except BaseException as error:  # even if the user interrupts, leave no process behind
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                out.write(f"killed after {stage.limit} s\n")
                code = 124
            if code:
                break
    output = log.read_text(errors="replace")
    count = stage.count(output) if stage.count else Count()
    if code == SKIPPED and not count.failed:
        count.skipped = 1
    elif code and not count.failed:
        count.failed = 1
    elif not code and not count.passed + count.skipped:
        count.passed = 1
    return count, output


def show(name: str, stage: Stage, shown: threading.Lock | None = None) -> Count:
    """Run one stage, and print its line and the end of its output if it failed.

    shown  held while the stage's lines are printed, when other stages run at the same time
    """
    head = f"{name:13} {stage.what:40} "
    if stage.needs and not shutil.which(stage.needs):
        with shown or contextlib.nullcontext():
            print(f"{head}skipped: there is no {Path(stage.needs).name} here")
        return Count(skipped=1)
    if not shown:
        print(head, end="", flush=True)
    start = time.monotonic()
    count, output = run(name, stage)
    seconds = time.monotonic() - start
    skipped = f", {count.skipped} skipped" if count.skipped else ""
    with shown or contextlib.nullcontext():
        print(head if shown else "", end="")
        print(f"{count.passed} passed, {count.failed} failed{skipped}  {seconds:.1f} s", flush=True)
        if count.failed:
            lines = output.splitlines()
            if len(lines) > SHOWN_LINES:
                print(f"  ... all {len(lines)} lines in build/logs/{name}.log")
            print("\n".join("  " + line for line in lines[-SHOWN_LINES:]))
            print(f"  to run it alone: {sys.executable} tests/run_all.py {name}", flush=True)
    return count


def run_lanes(
    lanes: Sequence[Sequence[str]], everything: dict[str, Stage], prefix: Sequence[str] = ()
) -> list[Count]:
    """Run lanes of stages at the same time, and return the counts.

    prefix  what precedes each command of all lanes but the first
    """
    shown = threading.Lock()

    def run_lane(lane: Sequence[str]) -> list[Count]:
        before = () if lane is lanes[0] else prefix
        counts = []
        for name in lane:
            commands = [[*before, *command] for command in everything[name].commands]
            counts.append(show(name, replace(everything[name], commands=commands), shown))
        return counts

    with ThreadPoolExecutor(len(lanes)) as pool:
        try:
            return [count for lane in pool.map(run_lane, lanes) for count in lane]
        except BaseException:
            interrupted.set()
            raise


def main(names: list[str]) -> int:
    everything = stages()
    if names == ["--list"]:
        for name, stage in everything.items():
            print(f"{name:13} {stage.what}{', when named' if stage.named else ''}")
        return 0
    if names == ["--quick"]:
        counts = run_lanes(QUICK, everything)
    elif not names:
        counts = run_lanes(BESIDE, everything, ["nice", "-n", "5"])
        done = {name for lane in BESIDE for name in lane}
        alone = [name for name, stage in everything.items() if not stage.named and name not in done]
        counts += [show(name, everything[name]) for name in alone]
    else:
        if unknown := [name for name in names if name not in everything]:
            print(f"no such stage: {', '.join(unknown)}; there is: {', '.join(everything)}")
            return 2
        counts = [show(name, everything[name]) for name in names]
    passed, failed = sum(count.passed for count in counts), sum(count.failed for count in counts)
    if skipped := sum(count.skipped for count in counts):
        print(f"{skipped} skipped")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
