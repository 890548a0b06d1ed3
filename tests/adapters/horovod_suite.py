# SPDX-License-Identifier: Apache-2.0
"""Horovod's own tests of PyTorch and TensorFlow, over ddl_horovod.

    python tests/adapters/horovod_suite.py HOROVOD/test/parallel             both files, 2 ranks
    python tests/adapters/horovod_suite.py HOROVOD/test/parallel --ranks 3   both files, 3 ranks

The argument is the folder of a clone of Horovod's public repository, which stays outside of this
one. Its files are not changed: in the ranks, `import horovod` finds ddl_horovod.

EXPECTED lists the tests that fail, each with its reason. Each of them runs in a job of its own,
since its ranks may end it differently. The script fails if another test fails, or if one of these
passes.
"""

import argparse
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import unittest.mock
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

RANK = "--rank"  # the first argument in the ranks of a job
END = "end of the session"  # a rank's last record
LIMIT = 900  # seconds for each job
MUON = "PyTorch refuses Muon, which the test finds among the optimizers, for 1-D parameters"
HALF = "with 3 ranks, the expected sum is no number of float16"

EXPECTED = {
    "test_torch.py": {
        "test_broadcast_state": MUON,
        "test_broadcast_state_options": MUON,
        "test_force_allreduce": MUON,
        "test_horovod_join_allgather": "Horovod refuses this; ddl_horovod supports it",
    },
    "test_tensorflow.py": {
        "test_elastic_state": "Horovod's elastic is not supported; ddl_elastic replaces it",
        "test_horovod_syncbn_cpu": "Keras 3 refuses the test's BatchNormalization(fused=False)",
        "test_partial_distributed_gradient_tape": "Keras 3's variables have no ref()",
    },
}
EXPECTED_ABOVE_2 = {
    "test_torch.py": {
        "test_horovod_allreduce_prescale": HALF,
        "test_horovod_grouped_reducescatter_prescale": HALF,
        "test_horovod_reducescatter_prescale": HALF,
    },
    "test_tensorflow.py": {},
}


# ---- in a rank ----


class HorovodFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Import `horovod.X` as `ddl_horovod.X`. Of Horovod's launcher, tests use one function."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != "horovod":
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        if not spec.name.startswith("horovod.runner"):
            return importlib.import_module(f"ddl_{spec.name}")
        module = ModuleType(spec.name)
        module.in_thread = in_thread  # type: ignore[attr-defined]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module has been imported."""


def in_thread(target: Any, args: tuple[Any, ...] = (), daemon: bool = True) -> threading.Thread:
    thread = threading.Thread(target=target, args=args, daemon=daemon)
    thread.start()
    return thread


class Recorder:
    """A plugin of pytest that selects tests, and writes a line of JSON for each that has ended."""

    def __init__(self, path: Path, only: list[str], without: list[str]) -> None:
        self._path, self._only, self._without = path, only, without
        self._outcomes: list[str] = []
        self._failure = ""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [
            each
            for each in items
            if each.name not in self._without and (not self._only or each.name in self._only)
        ]

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or not report.passed:
            self._outcomes.append(report.outcome)
        if report.failed:
            self._failure = self._failure or report.longreprtext

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        outcomes = self._outcomes[:-1] or self._outcomes  # subtests, then the test
        outcome = "passed" if "passed" in outcomes else "skipped"
        self._write(nodeid.rpartition("::")[2], "failed" if self._failure else outcome)
        self._outcomes, self._failure = [], ""

    def pytest_sessionfinish(self) -> None:
        self._write(END, "")

    def _write(self, name: str, outcome: str) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps([name, outcome, self._failure]) + "\n")


def run_rank(folder: Path, file: str, only: list[str], without: list[str]) -> None:
    """Run pytest in this rank. It exits with 0, since ddlrun would end the other ranks."""
    import pytest

    rank = os.environ["DDL_RANK"]
    os.environ.update(HOROVOD_RANK=rank, HOROVOD_SIZE=os.environ["DDL_SIZE"])
    sys.meta_path.insert(0, HorovodFinder())
    if importlib.util.find_spec("mock") is None:
        sys.modules["mock"] = unittest.mock
    options = ["-q", "--tb=short", "-p", "no:cacheprovider", "-c", os.devnull]
    pytest.main([*options, file], plugins=[Recorder(folder / rank, only, without)])


# ---- in the parent ----


@dataclass
class Outcomes:
    """The outcome of each test: failed if it failed in any rank."""

    of: dict[str, str] = field(default_factory=dict)
    details: dict[str, str] = field(default_factory=dict)

    def record(self, name: str, outcome: str, detail: str) -> None:
        if self.of.get(name) != "failed":
            self.of[name], self.details[name] = outcome, detail

    def names(self, outcome: str) -> list[str]:
        return sorted(name for name, each in self.of.items() if each == outcome)


def run_job(
    file: Path,
    ranks: int,
    outcomes: Outcomes,
    only: Sequence[str] = (),
    without: Sequence[str] = (),
) -> str:
    """Run tests of a file in a job. Return what is wrong with the job itself."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as log:
        selection = json.dumps([folder, str(file), [*only], [*without]])
        process = subprocess.Popen(
            [sys.executable, "-m", "ddl_launch", "-n", str(ranks), __file__, RANK, selection],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"},
            stdout=log,
            stderr=log,
        )
        wrong = ""
        try:
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
            wrong = f"the job did not end within {LIMIT} s"
        ended = 0
        for path in Path(folder).glob("[0-9]*"):
            for name, outcome, detail in map(json.loads, path.read_text().splitlines()):
                if name == END:
                    ended += 1
                else:
                    outcomes.record(name, outcome, detail)
        if not wrong and ended < ranks:
            log.seek(0)
            wrong = f"{ranks - ended} ranks did not run all tests:\n{log.read()[-3000:]}"
        return wrong


def run_file(file: Path, ranks: int) -> bool:
    """Run a file of tests. Return True if exactly the expected tests failed."""
    expected = EXPECTED[file.name] | (EXPECTED_ABOVE_2[file.name] if ranks > 2 else {})
    others, alone = Outcomes(), Outcomes()
    wrong = run_job(file, ranks, others, without=[*expected])
    for name in expected:
        run_job(file, ranks, alone, only=[name])
    failed = others.names("failed")
    for name in failed:
        print(f"FAILED {file.name} {name}\n{others.details[name]}")
    if wrong:
        print(f"FAILED {file.name}: {wrong}")
    for name, reason in expected.items():
        print(f"{alone.of.get(name, 'not found')} {file.name} {name}, expected to fail: {reason}")
    print(
        f"{file.name}, {ranks} ranks: {len(others.names('passed'))} passed,"
        f" {len(others.names('skipped'))} skipped, {len(alone.names('failed'))} failed as expected,"
        f" {len(failed)} failed",
        flush=True,
    )
    return not wrong and not failed and alone.names("failed") == sorted(expected)


def main() -> int:
    if sys.argv[1:2] == [RANK]:
        folder, file, only, without = json.loads(sys.argv[2])
        run_rank(Path(folder), file, only, without)
        return 0
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="test/parallel of a clone of Horovod")
    parser.add_argument("--ranks", type=int, default=2, help="number of ranks (default: 2)")
    arguments = parser.parse_args()
    files = [arguments.folder.resolve() / name for name in EXPECTED]
    if missing := [str(each) for each in files if not each.exists()]:
        parser.error(
            f"{', '.join(missing)}: no such file; give test/parallel of a clone of Horovod"
        )
    for adapter in ("ddl_torch", "ddl_tensorflow"):  # so that no time limit includes the compiler
        subprocess.run([sys.executable, "-m", adapter, "build"], check=True)
    passed = [run_file(each, arguments.ranks) for each in files]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
