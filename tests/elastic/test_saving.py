# SPDX-License-Identifier: Apache-2.0
"""The parts of several ranks form a checkpoint, or nothing; and later checkpoints always follow.

The ranks are Savers of one process here, whose votes are made by `min`; tests of real jobs with
checkpoints are in test_resume.py.
"""

import random
import threading
from pathlib import Path

import numpy as np
import pytest

from ddl_elastic.frameworks.protocol import State, Tensor, digest
from ddl_elastic.storage import checkpoint, saving
from ddl_elastic.storage.checkpoint import DamagedCheckpoint, Folder, Manifest
from ddl_elastic.storage.saving import Policy, Saver

pytestmark = pytest.mark.pure

EVERY = 3
CONSTANTS = {"batch": 8, "seed": 1}


def state_after(steps: int) -> State:
    """Five tensors, one of which never changes."""
    values = [*range(4), -1000]
    data = [np.full(300, value + steps * (value >= 0), np.float32) for value in values]
    return {f"w{n}": Tensor("float32", (300,), each.view(np.uint8)) for n, each in enumerate(data)}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = checkpoint.cut
    monkeypatch.setattr(saving.checkpoint, "cut", lambda state: cut(state, 1000))


class Job:
    """Savers of equal ranks."""

    def __init__(self, folder: Path, ranks: int, keep: int = 2) -> None:
        self.storage = Folder(folder)
        self.savers = [Saver(Policy(self.storage, EVERY, keep), CONSTANTS) for _ in range(ranks)]
        self.steps = 0

    def step(self, behind: Saver | None = None, waits: float = 1.0) -> None:
        """Run a vote and a step's end. `behind` has not seen the vote's end. Threads have ended by
        the vote with the probability `waits`."""
        for saver in self.savers:
            if random.random() < waits:
                saver.wait()
        least = min(saver.word for saver in self.savers)
        self.steps += 1
        for rank, saver in enumerate(self.savers):
            if saver is behind:
                saver.skip()
            else:
                saver.agree(least)
                state = state_after(self.steps)
                saver.boundary(lambda state=state: state, self.steps, rank, len(self.savers))

    def settle(self) -> None:
        for saver in self.savers:
            saver.wait()

    def newest(self) -> int:
        found = saving.newest(self.storage, CONSTANTS)
        if found is None:
            return 0
        manifest, state = found
        assert digest(state) == digest(state_after(manifest.steps))
        return manifest.steps


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_a_checkpoint_of_many_parts(tmp_path: Path, ranks: int) -> None:
    job = Job(tmp_path, ranks)
    for _ in range(2 * EVERY + 2):
        job.step()
    job.settle()
    assert job.newest() == 2 * EVERY
    assert [saver.error for saver in job.savers] == [None] * ranks
    assert not list(tmp_path.glob("part-*"))
    assert len(checkpoint.manifests(job.storage)) == 2


def test_steps_while_the_manifest_is_written(tmp_path: Path) -> None:
    class SlowFolder(Folder):
        def write(self, name: str, data: bytes) -> None:
            if name.startswith("steps-"):
                begun.set()
                assert goes_on.wait(60)
            super().write(name, data)

    begun, goes_on = threading.Event(), threading.Event()
    job = Job(tmp_path, 3)
    for saver in job.savers:
        saver._policy = Policy(SlowFolder(tmp_path), EVERY)
    for _ in range(EVERY + 1):
        job.step()
    assert begun.wait(60)
    vote = threading.Thread(target=lambda: job.step(waits=0))
    vote.start()
    vote.join(0.2)  # it waited for the manifest, and then searched for its parts again
    goes_on.set()
    vote.join()
    job.settle()
    assert [saver.error for saver in job.savers] == [None] * 3
    assert job.newest() == EVERY


def test_what_has_not_changed_is_written_once(tmp_path: Path) -> None:
    job = Job(tmp_path, 2)
    for _ in range(2 * EVERY + 2):
        job.step()
    job.settle()
    names = checkpoint.manifests(job.storage)
    first, second = (
        {file for file, _ in checkpoint.read_manifest(job.storage, name).chunks} for name in names
    )
    assert len(first & second) == 1


@pytest.mark.parametrize("seed", range(20))
def test_deaths_and_slow_disks(tmp_path: Path, seed: int) -> None:
    """Ranks die at random, one is behind at times, and threads are slow. Loaded checkpoints are
    whole, and later ones are written."""
    random.seed(seed)
    job = Job(tmp_path, 4)
    for _ in range(30):
        if random.random() < 0.1 and len(job.savers) > 1:
            dead = job.savers.pop(random.randrange(len(job.savers)))
            dead.wait()  # a thread of a test cannot be killed
            (tmp_path / dead._part.name).unlink(missing_ok=True)
        behind = random.choice(job.savers) if random.random() < 0.1 else None
        job.step(behind if len(job.savers) > 1 else None, waits=0.5)
        job.newest()
    for _ in range(3 * EVERY):
        job.step()
    job.settle()
    assert job.newest() >= job.steps - 2 * EVERY


class Gate:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._opened, self._held = threading.Event(), threading.Event()
        self._write = Folder.write
        monkeypatch.setattr(Folder, "write", lambda *arguments: self._hold(*arguments))

    def _hold(self, folder: Folder, name: str, data: bytes) -> None:
        if name.startswith("part-") and not self._held.is_set():
            self._held.set()
            assert self._opened.wait(60)
        self._write(folder, name, data)

    def open(self) -> None:
        self._opened.set()


@pytest.mark.parametrize("is_behind", [False, True])
def test_the_next_one_begins_when_all_have_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_behind: bool
) -> None:
    """One rank of three takes as long as two checkpoints would. Another rank may be behind when the
    first checkpoint begins, so its part is missing there."""
    gate, job = Gate(monkeypatch), Job(tmp_path, 3)
    while job.steps < 3 * EVERY - 1:
        begins = job.steps + 1 == EVERY
        job.step(job.savers[1] if is_behind and begins else None, waits=0)
    begun = [saver._part.steps for saver in job.savers]
    assert begun == ([EVERY, 0, EVERY] if is_behind else [EVERY] * 3)
    gate.open()
    job.settle()
    job.step(waits=0)  # reports that all have their parts
    job.step()  # the manifest is written, or a part is missing
    assert job.newest() == (0 if is_behind else EVERY)
    for _ in range(2 * EVERY):
        job.step()
    job.settle()
    assert job.newest() == 5 * EVERY


class HeldCopy:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, self.begun = threading.Event(), threading.Event()
        self._pack = checkpoint.pack
        monkeypatch.setattr(saving.checkpoint, "pack", self._wait)

    def _wait(self, state: State, chunk: checkpoint.Chunk) -> memoryview:
        self.begun.set()
        assert self.go.wait(60)
        return self._pack(state, chunk)


@pytest.mark.parametrize("beside", [False, True])
def test_what_waits_for_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    copy, saver = HeldCopy(monkeypatch), Saver(Policy(Folder(tmp_path), 1), CONSTANTS, beside)
    computed = threading.Event()

    def step() -> None:
        saver.begin(state_after(1), 1, 0, 1)
        computed.set()
        saver.wait_for_copy()

    thread = threading.Thread(target=step)
    thread.start()
    assert copy.begun.wait(60)
    if beside:
        assert computed.wait(60)
    assert thread.is_alive()
    assert computed.is_set() == beside
    copy.go.set()
    thread.join(60)
    assert not thread.is_alive()
    saver.wait()
    assert saver.error is None


def test_a_copy_that_fails_holds_nothing_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_state: State, _chunk: checkpoint.Chunk) -> memoryview:
        raise MemoryError("no room")

    monkeypatch.setattr(saving.checkpoint, "pack", fail)
    saver = Saver(Policy(Folder(tmp_path), 1), CONSTANTS)
    saver.begin(state_after(1), 1, 0, 1)
    saver.wait()
    assert "no room" in str(saver.error)


def test_an_abandoned_checkpoint_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, 2)
    for _ in range(2 * EVERY - 1):
        job.step()
    job.settle()
    before = {file.name for file in tmp_path.iterdir()}
    write = Folder.write

    def fail(folder: Folder, name: str, data: bytes) -> None:
        if name.startswith("part-") and "-1-of-2" in name:
            raise OSError(28, "No space left on device")
        write(folder, name, data)

    monkeypatch.setattr(Folder, "write", fail)
    for _ in range(EVERY - 1):
        job.step()
    job.settle()
    assert all(saver.error for saver in job.savers)
    assert {file.name for file in tmp_path.iterdir()} == before


def test_a_full_disk_ends_one_checkpoint_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, 2)
    write = Folder.write

    def fail(_folder: Folder, _name: str, _data: bytes) -> None:
        raise OSError(28, "No space left on device")

    for _ in range(2 * EVERY):
        full = EVERY <= job.steps < 2 * EVERY - 1
        monkeypatch.setattr(Folder, "write", fail if full else write)
        job.step()
        if job.steps == EVERY + 1:
            job.settle()
            assert any("No space left" in str(saver.error) for saver in job.savers)
    assert job.newest() == 0
    monkeypatch.setattr(Folder, "write", write)
    for _ in range(2):
        job.step()
    job.settle()
    assert job.newest() == 2 * EVERY


def test_the_own_error_is_the_one_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(tmp_path, 2)

    def fail(_folder: Folder, _name: str, _data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Folder, "write", fail)
    for _ in range(EVERY + 2):
        job.step()
    job.settle()
    assert all("No space left" in str(saver.error) for saver in job.savers)


def test_the_newest_whole_one_is_loaded(tmp_path: Path) -> None:
    job = Job(tmp_path, 2)
    for _ in range(2 * EVERY + 2):
        job.step()
    job.settle()
    newest = checkpoint.read_manifest(job.storage, checkpoint.manifests(job.storage)[0])
    older = checkpoint.read_manifest(job.storage, checkpoint.manifests(job.storage)[1])
    own = {file for file, _ in newest.chunks} - {file for file, _ in older.chunks}
    (tmp_path / own.pop()).write_bytes(b"torn")
    assert job.newest() == EVERY


@pytest.mark.parametrize("wrong", [{"every": 0}, {"every": 1, "keep": 0}])
def test_numbers_that_make_no_sense(tmp_path: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="is 0; must be at least 1"):
        Policy(Folder(tmp_path), **wrong)


def test_another_job_s_checkpoint_is_refused(tmp_path: Path) -> None:
    manifest = Manifest(3, {"batch": 16, "seed": 1}, {}, [])
    storage = Folder(tmp_path)
    storage.write(manifest.name, manifest.pack())
    with pytest.raises(ValueError, match="is of another job: batch was 16, is 8"):
        saving.newest(storage, CONSTANTS)


class FailingFolder(Folder):
    """Reading these names fails, as if a server did not answer."""

    def __init__(self, path: Path, *names: str) -> None:
        super().__init__(path)
        self.names_failing = names

    def read(self, name: str) -> bytes:
        if name in self.names_failing:
            raise OSError(5, "Input/output error", name)
        return super().read(name)


def saved(folder: Path, checkpoints: int = 2) -> Job:
    job = Job(folder, 2)
    for _ in range(checkpoints * EVERY + 2):
        job.step()
    job.settle()
    return job


@pytest.mark.parametrize("kind", ["steps", "safetensors"])
def test_what_cannot_be_read_now_is_no_older_checkpoint(tmp_path: Path, kind: str) -> None:
    """Other ranks may have read the newest one."""
    manifest = checkpoint.manifests(saved(tmp_path).storage)[0]
    chunks = checkpoint.read_manifest(Folder(tmp_path), manifest).chunks
    failing = manifest if kind == "steps" else chunks[-1][0]
    with pytest.raises(OSError, match="Input/output error"):
        saving.newest(FailingFolder(tmp_path, failing), CONSTANTS)


def test_nothing_is_removed_while_a_manifest_cannot_be_read(tmp_path: Path) -> None:
    newest, older = checkpoint.manifests(saved(tmp_path).storage)
    before = {file.name for file in tmp_path.iterdir()}
    for name in (newest, older):
        checkpoint.clean(FailingFolder(tmp_path, name), keep=2)
        assert {file.name for file in tmp_path.iterdir()} == before


def test_damaged_ones_do_not_count(tmp_path: Path) -> None:
    for name in checkpoint.manifests(saved(tmp_path, 3).storage):
        (tmp_path / name).write_bytes(b"torn")
    job = saved(tmp_path, 1)
    assert job.newest() == EVERY
    assert checkpoint.manifests(job.storage) == [f"steps-{EVERY:012}.json"]


def test_what_another_rank_has_written_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = checkpoint.manifests(saved(tmp_path, 3).storage)
    job, write = Job(tmp_path, 2), Folder.write
    job.steps = 3 * EVERY
    job.savers[0].saved = EVERY

    def fail(folder: Folder, name: str, data: bytes) -> None:
        if "-0-of-2" in name:
            raise OSError(28, "No space left on device")
        write(folder, name, data)

    monkeypatch.setattr(Folder, "write", fail)
    for _ in range(EVERY + 2):
        job.step()
    job.settle()
    assert job.savers[0].error
    assert checkpoint.manifests(job.storage) == before


def test_a_damaged_chunk_is_written_again(tmp_path: Path) -> None:
    storage = saved(tmp_path).storage
    files = [
        {file for file, _ in checkpoint.read_manifest(storage, name).chunks}
        for name in checkpoint.manifests(storage)
    ]
    (file,) = files[0] & files[1]
    (tmp_path / file).write_bytes(b"torn")
    damaged: list[DamagedCheckpoint] = []
    assert saving.newest(storage, CONSTANTS, damaged) is None
    assert [each.file for each in damaged] == [file] * 2
    job = Job(tmp_path, 2)
    for saver in job.savers:
        saver.damaged = {file}
    for _ in range(EVERY + 2):
        job.step()
    job.settle()
    assert job.newest() == EVERY


def test_what_killed_writers_leave_is_removed(tmp_path: Path) -> None:
    names = (".abc.safetensors.other-host.7", ".steps-000000000003.json.h.8", ".job-9.h.8")
    for name in (*names, ".probe-9-1.h.8"):
        (tmp_path / name).write_bytes(b"half")
    saved(tmp_path, 1)
    assert not list(tmp_path.glob(".*"))


def test_a_rank_that_is_behind_does_not_wait_for_its_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the others would take the rank for one that hangs. They begin no checkpoint until
    it has ended."""
    gate, job = Gate(monkeypatch), Job(tmp_path, 3)
    while job.steps < EVERY:
        job.step(waits=0)
    slow = next(saver for saver in job.savers if not saver.wait(1))  # one thread waits at the gate
    job.step(slow, waits=0)
    while job.steps < 3 * EVERY:
        job.step(waits=0)
    assert {saver.begun for saver in job.savers} == {EVERY}
    assert slow.held_up(3 * EVERY) > 0
    assert slow.held_up(3 * EVERY + 1) == 0
    gate.open()
    job.settle()
    for _ in range(2 * EVERY + 1):
        job.step()
    job.settle()
    assert job.newest() >= 4 * EVERY
