# SPDX-License-Identifier: Apache-2.0
"""`ddl elastic verify`, which checks that a program's result does not depend on its workers."""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddl_elastic.base import environment
from ddl_elastic.cli.program import add_program, check_program
from ddl_elastic.engines import program
from ddl_elastic.hidden.recording import Recording
from ddl_elastic.verify import causes
from ddl_elastic.verify.causes import Cause
from ddl_elastic.verify.compare import Difference, first_difference
from ddl_elastic.verify.records import RunRecords, read_run
from ddl_launch.errors import CommandError

STEPS, LIMIT = 20, 600.0
WORKERS = 3
REPLACED = f"with {WORKERS} workers of which two are replaced"
KEEPS, BREAKS, FAILED = 0, 1, 2  # exit codes
_TIMED_OUT = 124

_DESCRIPTION = """\
Check that a program keeps the law of elastic jobs: its result depends on the program, its data, the
seed, the batch and the logical workers, but not on the processes. The program's first steps are run
with one worker, with three, with three of which two are replaced, and from a checkpoint with two.
The bits of the loss, the gradients and the state are compared in each step. If they differ, the
first difference is named, with the likely cause and the line of the program.
"""

_EPILOG = """\
example: ddl elastic verify --steps 20 train.py --lr 0.1

The program's own checkpoints are neither read nor written. After its first steps the program is
ended: what it does behind its loop is not run.

exit code: 0 if the program keeps the law, 1 if it does not, 2 if it could not be run
"""


def add_verify(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    start: Callable[[list[str]], int],
) -> None:
    """Add `verify` to the commands of `ddl elastic`. `start` runs a command of `ddl elastic`."""
    verify = commands.add_parser(
        "verify",
        help="check that a program's result does not depend on its workers",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    verify.add_argument(
        "--steps",
        metavar="N",
        type=int,
        default=STEPS,
        help=f"number of steps to compare (default: {STEPS})",
    )
    verify.add_argument(
        "--limit",
        metavar="SECONDS",
        type=float,
        default=LIMIT,
        help=f"time limit of each run (default: {LIMIT:g})",
    )
    add_program(verify)
    verify.set_defaults(run=lambda arguments: _verify(arguments, start))


def _verify(arguments: argparse.Namespace, start: Callable[[list[str]], int]) -> int:
    environment.fix_hashes()
    path = check_program(arguments)
    if arguments.steps < 4:
        raise CommandError(f"--steps is {arguments.steps}; must be at least 4")
    words = [str(path), *arguments.arguments]
    # Not a TemporaryDirectory: the exit of each child would remove it.
    folder = Path(tempfile.mkdtemp(prefix="ddl-verify-"))
    try:
        return Verification(
            VerifyRunner(start, folder, words, arguments.limit), arguments.steps, path
        ).run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class RunFailed(Exception):
    """The error for a run with an exit code other than 0. `records` holds the run's records."""

    def __init__(self, text: str, records: RunRecords) -> None:
        super().__init__(text)
        self.records = records


@dataclass
class VerifyRunner:
    """The runner of a program, whose workers record the results of each step.

    start    runs `ddl elastic` with the given arguments, and returns its exit code
    command  the program and its arguments
    limit    the time limit of each run in seconds
    """

    start: Callable[[list[str]], int]
    folder: Path
    command: list[str]
    limit: float
    count: int = 0

    def run(
        self,
        name: str,
        workers: int,
        steps: int,
        strikes: dict[str, int] | None = None,
        checkpoints: Path | None = None,
        every: int = 1000,
    ) -> RunRecords:
        """Run the program, and return the workers' records. Raises RunFailed."""
        place, recording = self._place(steps, workers, strikes or {}, str(checkpoints or ""), every)
        began = time.monotonic()
        code, shown = self._execute(recording, self._words(workers))
        records = self._read(name, place, code, shown)
        say(f"{name}: {records.steps} steps in {time.monotonic() - began:.1f} s")
        return records

    def _place(self, steps: int, *others: Any) -> tuple[Path, Recording]:
        self.count += 1
        place = self.folder / f"run{self.count}"
        place.mkdir()
        return place, Recording(str(place), steps, *others)

    def _words(self, workers: int) -> list[str]:
        return ["run", "--quiet", "-n", str(workers), *self.command]

    def _read(self, name: str, place: Path, code: int, shown: str) -> RunRecords:
        records = read_run(name, place)
        if code:
            lines = "\n".join(f"    {line}" for line in shown.strip().splitlines()[-12:])
            why = f"exceeded {self.limit:g} s" if code == _TIMED_OUT else f"had exit code {code}"
            raise RunFailed(f"the run {name} {why}:\n{lines}", records)
        return records

    def _execute(self, recording: Recording, words: list[str]) -> tuple[int, str]:
        """Run `ddl elastic` in a forked child. Return its exit code and its output."""
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            sys.stdout.flush()
            sys.stderr.flush()
            child = os.fork()
            if not child:
                os.setsid()
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                environment.record(recording.dump())
                os._exit(_end(self.start, words))
            code = _wait(child, self.limit)
            output.seek(0)
            return code, output.read()

    def start_elsewhere(self, name: str, steps: int, hash_seed: int) -> Callable[[], RunRecords]:
        """Start a run with one worker, one core and another hash seed, in parallel with the other
        runs. Return a function that waits for its records."""
        place, recording = self._place(steps, 1)
        environment_of_run = environment.with_recording(recording.dump(), hash_seed)
        output = (place / "output").open("w+", errors="replace")
        process = subprocess.Popen(
            [sys.executable, "-m", "ddl_launch.commands", "elastic", *self._words(1)],
            env=environment_of_run,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: environment.use_cores(1),
        )

        def finish() -> RunRecords:
            code = _wait(process.pid, self.limit)
            process.returncode = code
            with output:
                output.seek(0)
                records = self._read(name, place, code, output.read())
            say(f"{name}: {records.steps} steps")
            return records

        return finish


def _end(start: Callable[[list[str]], int], words: list[str]) -> int:
    """Call `start` with these arguments. Return its exit code, even if it raises an exception."""
    code: object = 1
    try:
        code = start(words)
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else int(code is not None)


def _wait(child: int, limit: float) -> int:
    """Wait for a child, and return its exit code. At the time limit, kill its process group."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return abs(os.waitstatus_to_exitcode(status))
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return _TIMED_OUT


class Verification:
    """The check of one program: its runs, and the comparison of their records."""

    def __init__(self, runner: VerifyRunner, steps: int, path: Path) -> None:
        self._runner, self._steps, self._program = runner, steps, path
        self._checkpoints = runner.folder / "checkpoints"

    def run(self) -> int:
        """Run and compare all runs, print the result, and return the exit code."""
        program.preload(None, self._program)
        half = self._steps // 2
        self._elsewhere = self._runner.start_elsewhere(
            "with 1 worker on 1 core, and another PYTHONHASHSEED", self._steps, hash_seed=1
        )
        try:
            alone = self._runner.run(
                "with 1 worker", 1, self._steps, checkpoints=self._checkpoints, every=half
            )
        except RunFailed as error:
            return self._fail(error)
        if not alone.steps:
            return self._fail("the program has trained no step; make an elastic.Job in it")
        if (threads := self._find_threads(alone)) is not None:
            return self._break(None, [threads])
        steps = min(self._steps, alone.steps)
        tried = [alone.name]
        for start in self._others(steps):
            failure: RunFailed | str | None = None
            try:
                records = start()
            except RunFailed as error:
                failure, records = error, error.records
            difference = first_difference(alone, records)
            if difference:
                return self._break(difference, self._find_causes(alone, records, difference))
            if failure or (failure := self._find_gap(alone, records)):
                return self._fail(failure)
            tried.append(records.name)
        print(
            f"the program keeps the law: the losses, gradients and states of {steps} steps have"
            f" equal bits {', '.join(tried)}"
        )
        return KEEPS

    def _others(self, steps: int) -> list[Callable[[], RunRecords]]:
        """Return functions that perform the runs to compare with the first run."""
        run = self._runner.run
        strikes = {"0": steps // 4, "1": steps // 2}
        return [
            self._elsewhere,
            lambda: run(f"with {WORKERS} workers", WORKERS, steps),
            lambda: run(REPLACED, WORKERS, steps, strikes=strikes),
            lambda: self._resume(steps),
        ]

    def _resume(self, steps: int) -> RunRecords:
        """Continue with two workers from the checkpoint after half of the steps."""
        copy = self._runner.folder / "resumed"
        shutil.copytree(self._checkpoints, copy)
        for manifest in copy.rglob("steps-*.json"):
            if int(manifest.stem.split("-")[1]) > steps // 2:
                manifest.unlink()
        return self._runner.run("with 2 workers from a checkpoint", 2, steps, checkpoints=copy)

    def _find_gap(self, alone: RunRecords, other: RunRecords) -> str:
        """Return the reason why a run tested less than intended, or ""."""
        if not {n for each in other.workers for n in each.steps} & {*alone.workers[0].steps}:
            return f"the run {other.name} has none of the steps of the first run"
        joined = [each for each in other.workers if each.member >= WORKERS and each.steps]
        if other.name == REPLACED and len(joined) < 2:
            return f"{len(joined)} of 2 workers have joined in time; try more --steps"
        return ""

    def _find_causes(
        self, alone: RunRecords, other: RunRecords, difference: Difference
    ) -> list[Cause]:
        if len(other.workers) > 1 or min(other.workers[0].steps, default=0):
            return causes.find_hidden(difference) or [causes.unknown_cause()]
        try:
            again = self._runner.run("with 1 worker again", 1, self._steps)
        except RunFailed:
            return [causes.unknown_cause()]
        if first_difference(alone, again):
            return causes.find_irreproducible(alone, again)
        one, two = (
            each.workers[0].steps.get(difference.step, {}).get("threads", ["", ""])[0]
            for each in (alone, other)
        )
        if one != two:
            return [causes.threads_cause((one, two))]
        return [causes.set_cause(set_lines(self._program))]

    def _find_threads(self, alone: RunRecords) -> Cause | None:
        for worker in alone.workers:
            for record in worker.steps.values():
                now, before = record["threads"]
                if now != before:
                    return causes.threads_cause((before, now))
        return None

    def _break(self, difference: Difference | None, found: list[Cause]) -> int:
        print("the program breaks the law: its result depends on the workers")
        if difference:
            print(f"first difference: {difference}")
        for number, each in enumerate(found):
            print(f"{'likely cause' if not number else '          or'}: {each}")
        return BREAKS

    def _fail(self, why: object) -> int:
        print(f"could not be checked: {why}")
        return FAILED


def set_lines(path: Path) -> list[str]:
    """Return the first five lines at which a program creates sets or calls hash()."""
    tree = ast.parse(path.read_text(errors="replace"))
    lines = set()
    for each in ast.walk(tree):
        is_call = isinstance(each, ast.Call) and isinstance(each.func, ast.Name)
        if isinstance(each, ast.Set | ast.SetComp) or (
            is_call and each.func.id in ("set", "frozenset", "hash")  # type: ignore[attr-defined]
        ):
            lines.add(each.lineno)  # type: ignore[attr-defined]
    return [f"{path.name}:{line}" for line in sorted(lines)[:5]]


def say(text: str) -> None:
    """Print a progress message to stderr."""
    print(text, file=sys.stderr, flush=True)
