# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own distributed tests, which its wheel carries, against the backend "ddl".

    python tests/adapters/torch_suite.py              all that can run without a GPU
    python tests/adapters/torch_suite.py --sample     a fixed few of them
    python tests/adapters/torch_suite.py test_gather  these
    python tests/adapters/torch_suite.py --record     rewrite torch_suite.txt

Each test runs on three forked processes. PyTorch's tests name the backends they are for; wherever
Gloo or MPI is named, "ddl" is added when the source is loaded. Those that ask for eight ranks, so
that fewer run on few GPUs, get three. Nothing else is changed.

torch_suite.txt lists the tests that must pass. That one of them fails or skips, or that another
one passes, is an error. What does not run is counted by PyTorch's reason; EXCLUDED names the tests
that are left out beyond that, and why.
"""

import argparse
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import re
import sys
import tempfile
import time
import unittest
from collections import Counter
from pathlib import Path
from types import ModuleType

RANKS = 3
MODULE = "torch.testing._internal.distributed.distributed_test"
PASSING = Path(__file__).with_suffix(".txt")

EXCLUDED = {"test_ddp_logging_data_cpu": "PyTorch calls every backend that is not its own 'custom'"}

SAMPLE = (
    *("test_all_gather_coalesced_simple", "test_all_reduce_coalesced_sum"),
    *("test_all_reduce_sum_async", "test_all_to_all_single_unequal_split_full_group"),
    *("test_barrier_timeout_global", "test_batch_isend_irecv_gloo", "test_gather_full_group"),
    *("test_monitored_barrier_gloo", "test_reduce_sum", "test_scatter_checks"),
    *("test_send_recv_any_source", "test_sparse_all_reduce_sum"),
)

# Conditions on the backend in the source, and their replacements.
_CONDITIONS = [
    (r'BACKEND != "(gloo|mpi)"', r'BACKEND not in ("\1", "ddl")'),
    (r'BACKEND == "(gloo|mpi)"', r'BACKEND in ("\1", "ddl")'),
    (
        r'require_backend_is_available\(\{"gloo"\}\)',
        'require_backend_is_available({"gloo", "ddl"})',
    ),
]


class _Opened(importlib.abc.SourceLoader):
    """Reads the module's source, with its conditions on backends changed to include "ddl"."""

    def __init__(self, path: str) -> None:
        self.path = path

    def get_filename(self, fullname: str) -> str:
        return self.path

    def get_data(self, path: str) -> bytes:
        text = Path(path).read_text()
        for condition, wider in _CONDITIONS:
            text, found = re.subn(condition, wider, text)
            if not found:
                raise RuntimeError(f"{path} has no {condition!r}")
        return text.encode()

    def path_stats(self, path: str) -> dict[str, float]:
        raise OSError  # neither read nor write compiled files


def load() -> ModuleType:
    import torch  # registers the backend
    from torch.testing._internal import common_distributed

    from ddl_torch import _build

    _build.module()  # once, before all forks
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp())
    for name in ("barrier", "test_dir", "init_dir"):
        (folder / name).mkdir()
    os.environ.update(
        BACKEND="ddl",
        WORLD_SIZE=str(RANKS),
        TEMP_DIR=str(folder),
        MASTER_ADDR="127.0.0.1",
        INIT_METHOD=f"file://{folder}/init_dir/shared_init_file",
        OMP_NUM_THREADS="1",
    )
    for backends in common_distributed.DistTestCases.backend_feature.values():
        backends.add("ddl")
    common_distributed.skip_if_small_worldsize = lambda function: function
    found = importlib.util.find_spec(MODULE)
    assert found is not None and found.origin is not None
    spec = importlib.machinery.ModuleSpec(MODULE, _Opened(found.origin), origin=found.origin)
    spec.has_location = True
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return module


def tests_of(module: ModuleType) -> type[unittest.TestCase]:
    class TestDdl(module.TestDistBackend, module.DistributedTest._DistTestBase):  # type: ignore
        def setUp(self) -> None:
            super().setUp()
            self._fork_processes()

        def _fork_processes(self) -> None:
            import torch

            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    TestDdl.__module__ = "__main__"
    return TestDdl


class _Result(unittest.TestResult):
    def __init__(self, expected: set[str] | None) -> None:  # None: all tests that pass
        super().__init__()
        self.expected = expected
        self.passed: list[str] = []
        self.wrong: list[str] = []
        self.reasons: Counter[str] = Counter()

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.begun = time.monotonic()

    def _tell(self, test: unittest.TestCase, what: str, ok: bool, detail: str = "") -> None:
        name = test.id().rpartition(".")[2]
        if not ok:
            self.wrong.append(name)
        if not ok or what == "passed":
            print(f"{what:8} {time.monotonic() - self.begun:5.1f} s  {name}", flush=True)
        if detail and not ok:
            print(detail, flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:
        name = test.id().rpartition(".")[2]
        self.passed.append(name)
        self._tell(test, "passed", self.expected is None or name in self.expected)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        name = test.id().rpartition(".")[2]
        self.reasons[reason] += 1
        self._tell(test, "skipped", name not in (self.expected or ()), f"  {reason}")

    def addFailure(self, test: unittest.TestCase, err: object) -> None:
        self._tell(test, "FAILED", False, self._exc_info_to_string(err, test))

    addError = addFailure


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sample", action="store_true", help="only a fixed few")
    parser.add_argument("--record", action="store_true", help=f"rewrite {PASSING.name}")
    parser.add_argument("names", nargs="*", help="only these tests")
    arguments = parser.parse_args()

    cases = tests_of(load())
    logging.disable(logging.INFO)
    names = arguments.names or (
        SAMPLE if arguments.sample else unittest.defaultTestLoader.getTestCaseNames(cases)
    )
    listed = PASSING.read_text().split()
    result = _Result(None if arguments.record else set(listed))
    for name in names:
        if name in EXCLUDED:
            result.reasons[EXCLUDED[name]] += 1
        else:
            cases(name).run(result)
    for reason, number in result.reasons.most_common():
        print(f"{number:4} not run: {reason}")
    if arguments.record:
        PASSING.write_text("\n".join(sorted(result.passed)) + "\n")
    print(f"{len(set(result.passed) - set(result.wrong))} passed, {len(result.wrong)} failed")
    return 1 if result.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
