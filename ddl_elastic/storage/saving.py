# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a running job: each rank writes its part beside the steps, the votes tell when all
have, and then rank 0 writes the manifest.

A part is some of the chunks, and a small file that lists them. Rank 0 makes the manifest of all
parts' lists. A part that is missing, because its rank has died or its disk is full, ends that
checkpoint and nothing else: the older ones stay, and the steps go on.

Votes: each rank votes with its `word`, and all learn the least one. For the state after s steps
it is 4 s while a rank writes its part, 4 s + 1 when rank 0 waits for the others' parts, and 4 s + 2
when a rank has finished. The next checkpoint begins, on all ranks in the same step, when all have
finished. So nobody removes what another rank has just written.

Threads: one at a time, which alone uses the storage. The caller reads `word`, `error` and `saved`.
`_lock` guards who sets `word` last: the thread that ends, or the caller that skips.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ddl_elastic.base import environment
from ddl_elastic.frameworks.protocol import State
from ddl_elastic.storage import checkpoint
from ddl_elastic.storage.checkpoint import DamagedCheckpoint, Manifest, Storage
from ddl_elastic.storage.object_storage import storage_at

_WAITS, _FINISHED = 1, 2
_SKIPS = 4 * (1 << 60) + _FINISHED  # nobody's least word


@dataclass(frozen=True)
class Policy:
    """Where and how often. Not a constant of the job: the result does not depend on it."""

    storage: Storage
    every: int  # steps
    keep: int = 3  # checkpoints

    def __post_init__(self) -> None:
        for name, number in (("every", self.every), ("keep", self.keep)):
            if number < 1:
                raise ValueError(f"{name} is {number}; it is a number from 1 on")


_jobs = itertools.count()  # of this process; all workers of a program count alike


def policy_find(location: str | None, every: int, keep: int) -> Policy | None:
    """For a program's next job, which names this place for its checkpoints; None: where the one
    who runs the program has said, or nowhere. Raises ValueError and ImportError."""
    if recording := environment.recording():  # the program's own checkpoints stay as they are
        told = json.loads(recording)
        where = told["checkpoints"] and f"{told['checkpoints']}/{next(_jobs)}"
        every = told["every"]
    else:
        where = location or environment.checkpoint_folder(next(_jobs))
    return Policy(storage_at(where), every, keep) if where else None


@dataclass(frozen=True)
class _Part:
    """What one of `ranks` ranks writes of the state after so many steps."""

    steps: int
    rank: int
    ranks: int

    @property
    def name(self) -> str:
        return f"part-{self.steps:012}-{self.rank}-of-{self.ranks}.json"

    def of(self, rank: int) -> _Part:
        return _Part(self.steps, rank, self.ranks)


class Saver:
    """Writes the checkpoints of one rank's job.

    beside  whether the state is copied beside the next step's computation, too. Nothing but a
            step's end may change it then: not the program, whatever it does between two steps
    """

    def __init__(self, policy: Policy, constants: Mapping[str, Any], beside: bool = False) -> None:
        self._policy, self._constants, self._beside = policy, dict(constants), beside
        self._copied = threading.Event()
        self._copied.set()
        self._thread: threading.Thread | None = None
        self._part, self._is_written = _Part(0, 0, 1), False
        self._is_complete = False  # all parts were there: the manifest is written, or about to be
        self._tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._agreed = self.word = _FINISHED  # the least word of the last vote, and the own one
        self._lock = threading.Lock()
        self._writes = False  # a thread is under way
        self._skips = False  # this rank knows no more of the checkpoint that it writes
        self._began = 0.0  # when
        self.damaged = set[str]()  # chunks whose files have other contents: they are written again
        # For each number of steps, the newest checkpoint that is not after more steps is kept.
        self.needed: Callable[[], Sequence[int]] = tuple
        self.error: Exception | None = None  # of the last checkpoint, if it was abandoned
        self.saved = 0  # steps of the last checkpoint whose manifest this rank has written

    @property
    def storage(self) -> Storage:
        """The place of the checkpoints."""
        return self._policy.storage

    @property
    def begun(self) -> int:
        """Steps of the last checkpoint that this rank has begun."""
        return self._part.steps

    def held_up(self, steps: int) -> float:
        """For how many seconds this rank has been writing the last checkpoint, if the one after so
        many steps is due and cannot begin for that; else 0."""
        is_due = steps % self._policy.every == 0
        return time.monotonic() - self._began if is_due and self._writes else 0.0

    def boundary(self, state: Callable[[], State], steps: int, rank: int, ranks: int) -> None:
        """So many steps are committed: begin a checkpoint if it is due, and no other is under way.
        Copies this rank's part of the state, or begins to, and returns."""
        if steps % self._policy.every == 0 and self._agreed % 4 == _FINISHED:
            self.begin(state(), steps, rank, ranks)

    def begin(self, state: State, steps: int, rank: int, ranks: int) -> None:
        """Write this rank's part of the state after so many steps."""
        self.wait()
        self._part, self.error, self.word = _Part(steps, rank, ranks), None, 4 * steps
        self._began, self._skips = time.monotonic(), False
        self._tensors = {name: (each.dtype, each.shape) for name, each in state.items()}
        chunks = checkpoint.cut(state)
        own = [(number, chunk) for number, chunk in enumerate(chunks) if number % ranks == rank]
        self._is_written = self._is_complete = False
        self._copied.clear()
        self._start(lambda: self._write_part(state, own), _FINISHED if rank else _WAITS)
        if not self._beside:
            self.wait_for_copy()

    def wait_for_copy(self) -> None:
        """Until the state may change again."""
        self._copied.wait()

    def skip(self) -> None:
        """Catch up: this rank was behind in the step before, and does not know what was agreed on.
        If the
        others begin a checkpoint, its part is missing there. What it writes, it writes first: until
        then nobody begins another one."""
        with self._lock:
            self._skips = True
            if not self._writes:
                self.word = _SKIPS

    def agree(self, least: int) -> None:
        """The vote has ended: the least word of all ranks."""
        self._agreed = least
        if least == self.word and least % 4 == _WAITS and not self._is_complete:
            self._is_complete = True
            self._start(self._write_manifest, _FINISHED)

    def wait(self, seconds: float | None = None) -> bool:
        """Until the thread has written what it was given, or for so many seconds. Whether it
        has."""
        if self._thread is None:
            return True
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _start(self, work: Callable[[], None], then: int) -> None:
        def run() -> None:
            try:
                work()
            except Exception as error:  # whatever a storage raises
                self.error = self.error or error
            with self._lock:
                self.word = _SKIPS if self._skips else 4 * self._part.steps + then
                self._writes = False

        self.wait()
        self._writes = True
        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def _write_part(self, state: State, chunks: list[tuple[int, checkpoint.Chunk]]) -> None:
        try:
            copies = [checkpoint.pack(state, chunk) for _, chunk in chunks]
        finally:
            self._copied.set()
        storage, listed = self._policy.storage, []
        there, written = set(storage.names()), list[str]()
        try:
            for (number, chunk), data in zip(chunks, copies, strict=True):
                file = checkpoint.file_name(data)
                if file not in there or file in self.damaged:
                    written.append(file)
                    storage.write(file, data)
                    self.damaged.discard(file)
                listed.append([number, file, [[each.name, each.begin, each.end] for each in chunk]])
            storage.write(self._part.name, json.dumps(listed).encode())
            self._is_written = True
        except Exception:
            for file in written:  # which no checkpoint will have
                with suppress(OSError):
                    storage.remove(file)
            raise

    def _write_manifest(self) -> None:
        """Of the parts that all ranks have written; and remove what is not needed any more. If the
        own part is missing, that was told already."""
        storage, saved = self._policy.storage, 0
        parts = [self._part.of(rank).name for rank in range(self._part.ranks)]
        try:
            if self._is_written:
                chunks = self._read_parts(parts)
                manifest = Manifest(self._part.steps, self._constants, self._tensors, chunks)
                storage.write(manifest.name, manifest.pack())
                saved = self.saved = self._part.steps
        finally:
            for name in storage.names():
                if name.startswith("part-") and name <= parts[-1]:
                    storage.remove(name)
            checkpoint.clean(storage, self._policy.keep, saved, self.needed())

    def _read_parts(self, names: list[str]) -> list[tuple[str, checkpoint.Chunk]]:
        listed = []
        try:
            for name in names:
                listed += json.loads(self._policy.storage.read(name))
        except (OSError, ValueError) as error:
            raise DamagedCheckpoint(f"a rank has not written its part: {error}") from error
        return [
            (file, tuple(checkpoint.Piece(*piece) for piece in pieces))
            for _, file, pieces in sorted(listed)
        ]


def newest(
    storage: Storage, constants: Mapping[str, Any], damaged: list[DamagedCheckpoint] | None = None
) -> tuple[Manifest, State] | None:
    """The newest checkpoint that is whole, if there is one, with its state; `damaged` gets what is
    wrong with newer ones. Raises ValueError if it was written by a job with other constants, and
    OSError if one may be whole, but cannot be read now: other ranks may have read it."""
    for name in checkpoint.manifests(storage):
        try:
            manifest = checkpoint.read_manifest(storage, name)
            state = checkpoint.read_state(storage, manifest)
        except DamagedCheckpoint as error:
            if damaged is not None:
                damaged.append(error)
            continue
        others = {
            each: (manifest.constants.get(each), value)
            for each, value in constants.items()
            if manifest.constants.get(each) != value
        }
        if others:
            told = ", ".join(
                f"{each} was {was!r}, is {now!r}" for each, (was, now) in others.items()
            )
            raise ValueError(f"the checkpoint {name} is of another job: {told}")
        return manifest, state
    return None
