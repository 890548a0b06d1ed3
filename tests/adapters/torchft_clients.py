# SPDX-License-Identifier: Apache-2.0
"""torchft over "ddl" (make test-torch-latest): its algorithms with a real lighthouse and a kill -9,
and its own tests of them."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist

PROGRAM = Path(__file__).parent / "programs" / "torchft_training.py"
LIGHTHOUSE = ("--min_replicas=1", "--quorum_tick_ms=10", "--heartbeat_timeout_ms=500")
LIMIT = 600.0
REPLICAS = 3


class Commit(NamedTuple):
    replica: int
    rank: int
    step: int
    members: int
    digest: str


class Training:
    """Replica groups that train, each of `size` ranks."""

    def __init__(self, kind: str, folder: Path, lighthouse: str) -> None:
        self.kind, self.folder, self.size = kind, folder, 2 if kind == "hsdp" else 1
        self.lighthouse = lighthouse
        self.processes: dict[int, list[subprocess.Popen[bytes]]] = {}
        self.stores: list[dist.TCPStore] = []
        self.output = open(folder / "output", "wb")

    def start(self, replica: int) -> None:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.stores.append(store)
        env = {**os.environ, "TORCHFT_LIGHTHOUSE": self.lighthouse, "OMP_NUM_THREADS": "1"}
        self.processes[replica] = [
            subprocess.Popen(
                [sys.executable, PROGRAM, self.kind, self.folder]
                + [str(each) for each in (replica, rank, self.size, store.port)],
                env=env,
                stdout=self.output,
                stderr=self.output,
            )
            for rank in range(self.size)
        ]

    def kill(self, replica: int) -> None:
        for process in self.processes.pop(replica):
            process.kill()
            process.wait()

    def commits(self) -> list[Commit]:
        file = self.folder / "commits"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        whole = [line.split() for line in lines if line.endswith("\n")]
        return [Commit(*(int(each) for each in line[:4]), line[4]) for line in whole]

    def wait(self, what: str, done: Callable[[list[Commit]], bool]) -> list[Commit]:
        deadline = time.monotonic() + LIMIT
        while not done(commits := self.commits()):
            log = (self.folder / "output").read_text()[-6000:]
            ended = [p for some in self.processes.values() for p in some if p.poll() is not None]
            assert not ended, f"a rank has exited before {what}:\n{log}"
            assert time.monotonic() < deadline, f"{what} did not happen:\n{log}"
            time.sleep(0.02)
        return commits

    def all_commit(self, commits: list[Commit], after: int) -> bool:
        """Return whether all running ranks have committed a common step after this number of
        commits."""
        ranks = {(r, rank) for r in self.processes for rank in range(self.size)}
        steps: dict[int, set[tuple[int, int]]] = {}
        for commit in commits[after:]:
            if commit.members == len(self.processes):
                steps.setdefault(commit.step, set()).add((commit.replica, commit.rank))
        return any(found == ranks for found in steps.values())


@contextmanager
def training(kind: str, folder: Path) -> Iterator[Training]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [Path(sys.executable).with_name("torchft_lighthouse"), f"--bind=127.0.0.1:{port}"]
    lighthouse = subprocess.Popen(
        [*command, *LIGHTHOUSE, "--join_timeout_ms=1000"], stderr=subprocess.DEVNULL
    )
    run = Training(kind, folder, f"http://127.0.0.1:{port}")
    try:
        yield run
    finally:
        for replica in list(run.processes):
            run.kill(replica)
        lighthouse.kill()
        lighthouse.wait()
        run.output.close()


@pytest.mark.parametrize("kind", ["ddp", "localsgd", "diloco", "hsdp"])
def test_recovery_after_a_kill(kind: str, tmp_path: Path) -> None:
    with training(kind, tmp_path) as run:
        for replica in range(REPLICAS):
            run.start(replica)
        before = run.wait("a step of all", lambda commits: run.all_commit(commits, 0))
        run.kill(1)
        killed = len(before)
        begun = time.monotonic()
        after = run.wait("a step of the survivors", lambda c: run.all_commit(c, killed))
        print(f"{kind}: {time.monotonic() - begun:.2f} s until the survivors' next common step")
        run.start(REPLICAS)
        run.wait("a step with the new one", lambda c: run.all_commit(c, len(after)))
        commits = run.commits()
    digests: dict[tuple[int, int], set[str]] = {}
    for commit in commits:
        digests.setdefault((commit.rank, commit.step), set()).add(commit.digest)
    different = {key: found for key, found in digests.items() if len(found) > 1}
    assert not different
    assert len({commit.digest for commit in commits if commit.rank == 0}) > 3, "it does not train"


def test_process_group_has_its_invariant() -> None:
    """Set the order of additions in each quorum's group. An unknown order raises an error."""
    from ddl_core.base.config import invariant_name
    from ddl_core.errors import InvalidArgument
    from ddl_torch.torchft import ProcessGroupDDL

    with pytest.raises(InvalidArgument, match="invariant"):
        ProcessGroupDDL(invariant="sizes")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    group = ProcessGroupDDL(invariant="size")
    for quorum in range(2):
        where = f"127.0.0.1:{store.port}/{quorum}"
        group.configure(where, "replica0", 0, 1, quorum)
        backend = group._pg._get_backend(torch.device("cpu"))
        assert invariant_name(backend.invariant) == "size"
    group.shutdown()


SUITE = """\
import importlib, sys, unittest
import ddl_torch.torchft as ours, torchft.process_group as theirs
made = []
class Counted(ours.ProcessGroupDDL):
    def _create_pg(self, *args):
        made.append(args)
        return super()._create_pg(*args)
for name in ("torchft.manager_integ_test", "torchft.local_sgd_integ_test",
             "torchft._test.diloco_trainer"):
    module = importlib.import_module(name)
    assert module.ProcessGroupGloo is theirs.ProcessGroupGloo
    module.ProcessGroupGloo = Counted
tests = unittest.defaultTestLoader.loadTestsFromNames(sys.argv[1:])
result = unittest.TextTestRunner(verbosity=2).run(tests)
assert made, "no group of ddl was created"
sys.exit(not result.wasSuccessful() or result.testsRun == 0)
"""


@pytest.mark.parametrize("name", ["manager_integ_test", "local_sgd_integ_test"])
def test_suite_of_torchft(name: str, tmp_path: Path) -> None:
    """Run torchft's own tests of its algorithms, with "ddl" in place of Gloo. Replicas are
    threads."""
    pytest.importorskip("parameterized")
    command = [sys.executable, "-c", SUITE, f"torchft.{name}"]
    ended = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, timeout=600)
    results = [
        line for line in ended.stderr.splitlines() if line.endswith((" ok", "FAIL", "ERROR"))
    ]
    print("\n".join(results), ended.stderr[-200:])
    assert ended.returncode == 0, ended.stderr[-8000:]
