# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a running job. Each rank writes its part in parallel with the steps. When the
votes show that all ranks have finished, rank 0 writes the manifest.

A part consists of some of the chunks, and a small file that lists them and their tensors. Rank 0
merges the lists into the manifest. If a part is missing, because its rank died or its disk is full,
that checkpoint is abandoned. The older ones stay, and training continues.

Each rank votes with its `word`, and all ranks get the smallest one. For the state after s steps it
is 4 s while a rank writes its part, 4 s + 1 when rank 0 waits for the parts of other ranks, and 4 s
+ 2 when a rank has finished. When all have finished, the next checkpoint may begin, on all ranks in
the same step. No rank can therefore remove files that another rank has just written.

Only one thread runs at a time, and only it uses the storage. The caller reads `word`, `error` and
`saved`. `_lock` orders the writes to `word` by a thread that ends and by a caller of `skip`.
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
from ddl_elastic.frameworks.protocol import PartialState, State
from ddl_elastic.storage import checkpoint
from ddl_elastic.storage.checkpoint import DamagedCheckpoint, Manifest, Storage
from ddl_elastic.storage.object_storage import storage_at

# The constants that may differ between the calls of Loop.steps. A checkpoint has their values in
# the first call, and the later changes as _CALLS.
SETTINGS, _CALLS = ("local_steps", "wire"), "calls"
_WAITS, _FINISHED = 1, 2
_SKIPS = 4 * (1 << 60) + _FINISHED  # larger than all other words


@dataclass(frozen=True)
class Policy:
    """The place and frequency of checkpoints. The job's result does not depend on them."""

    storage: Storage
    every: int  # steps
    keep: int = 3  # checkpoints

    def __post_init__(self) -> None:
        for name, number in (("every", self.every), ("keep", self.keep)):
            if number < 1:
                raise ValueError(f"{name} is {number}; must be at least 1")


_jobs = itertools.count()  # numbers of this program's jobs, equal on all workers


def policy_find(location: str | None, every: int, keep: int) -> Policy | None:
    """Return the policy for the program's next job. Without `location`, use the place set by the
    user who runs the program, or return None. Raises ValueError or ImportError."""
    if recording := environment.recording():  # keep the program's own checkpoints unchanged
        told = json.loads(recording)
        where = told["checkpoints"] and f"{told['checkpoints']}/{next(_jobs)}"
        every = told["every"]
    else:
        where = location or environment.checkpoint_folder(next(_jobs))
    return Policy(storage_at(where), every, keep) if where else None


@dataclass(frozen=True)
class _Part:
    """The part that one of `ranks` ranks writes of the state after `steps` steps."""

    steps: int
    rank: int
    ranks: int

    @property
    def name(self) -> str:
        return f"part-{self.steps:012}-{self.rank}-of-{self.ranks}.json"

    def of(self, rank: int) -> _Part:
        return _Part(self.steps, rank, self.ranks)


class Saver:
    """The writer of a job's checkpoints, on one rank.

    beside  True to copy the state in parallel with the next step's computation. Then only the end
            of a step may change the state, not the program between two steps
    """

    def __init__(self, policy: Policy, constants: Mapping[str, Any], beside: bool = False) -> None:
        self._policy, self._constants, self._beside = policy, dict(constants), beside
        # The changes of SETTINGS after the first call of Loop.steps: the first step of a call, and
        # its settings. None if the job has resumed from a checkpoint that does not have them.
        self.calls: list[Any] | None = []
        self._copied = threading.Event()
        self._copied.set()
        self._thread: threading.Thread | None = None
        self._part, self._is_written = _Part(0, 0, 1), False
        self._is_complete = False  # all parts existed: the manifest is written, or will be
        self._tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._agreed = self.word = _FINISHED  # smallest word in the last vote, own word
        self._lock = threading.Lock()
        self._writes = False  # a thread is writing
        self._skips = False  # this rank does not know the state of its checkpoint
        self._began = 0.0  # time at which the last checkpoint was begun
        self.damaged = set[str]()  # chunk files to write again: wrong contents
        # Returns numbers of steps. For each, the newest checkpoint with at most that many is kept.
        self.needed: Callable[[], Sequence[int]] = tuple
        self.error: Exception | None = None  # the reason if the last checkpoint was abandoned
        self.saved = 0  # steps of the last checkpoint whose manifest this rank has written
        self.token = 0  # of the job's storage, see worker/shared_storage.py; 0 if it is unknown

    @property
    def mark(self) -> str:
        """The file that stays in the job's storage, for workers that join later."""
        return f"job-{self.token}"

    @property
    def storage(self) -> Storage:
        """The storage of the checkpoints."""
        return self._policy.storage

    @property
    def begun(self) -> int:
        """The number of steps of the last checkpoint that this rank has begun."""
        return self._part.steps

    def resume(self, constants: Mapping[str, Any]) -> None:
        """Continue after the checkpoint with these constants."""
        self.calls = constants.get(_CALLS)

    def settings_at(self, step: int) -> dict[str, Any]:
        """Return the SETTINGS of the call of Loop.steps in which this step is."""
        found = {name: self._constants[name] for name in SETTINGS}
        for begin, settings in self.calls or ():
            if begin <= step:
                found = settings
        return found

    def held_up(self, steps: int) -> float:
        """Return the seconds since this rank began the last checkpoint, if its writing delays a
        checkpoint that is due after `steps` steps. Otherwise, return 0."""
        is_due = steps % self._policy.every == 0
        return time.monotonic() - self._began if is_due and self._writes else 0.0

    def boundary(self, state: Callable[[], State], steps: int, rank: int, ranks: int) -> None:
        """Begin a checkpoint after `steps` steps if it is due and no other one is in progress.
        Return when this rank's part is copied or, with `beside`, when copying has begun."""
        if steps % self._policy.every == 0 and self._agreed % 4 == _FINISHED:
            self.begin(state(), steps, rank, ranks)

    def begin(self, state: State, steps: int, rank: int, ranks: int) -> None:
        """Start to write this rank's part of the state after `steps` steps."""
        self.wait()
        self._part, self.error, self.word = _Part(steps, rank, ranks), None, 4 * steps
        self._began, self._skips = time.monotonic(), False
        self._tensors = {name: (each.dtype, each.shape) for name, each in state.items()}
        chunks = checkpoint.cut(state)
        own = [(number, chunk) for number, chunk in enumerate(chunks) if number % ranks == rank]
        if isinstance(state, PartialState):
            own = [(number * ranks + rank, chunk) for number, chunk in enumerate(chunks)]
        self._is_written = self._is_complete = False
        self._copied.clear()
        self._start(lambda: self._write_part(state, own), _FINISHED if rank else _WAITS)
        if not self._beside:
            self.wait_for_copy()

    def wait_for_copy(self) -> None:
        """Wait until the state may change again."""
        self._copied.wait()

    def skip(self) -> None:
        """Skip a checkpoint, because this rank was behind and does not know the last vote. If the
        other ranks begin one, its part will be missing. If this rank is still writing, it finishes
        first, and until then no rank begins another checkpoint."""
        with self._lock:
            self._skips = True
            if not self._writes:
                self.word = _SKIPS

    def agree(self, least: int) -> None:
        """Record the smallest word of all ranks after a vote. Start the manifest if it is time."""
        self._agreed = least
        if least == self.word and least % 4 == _WAITS and not self._is_complete:
            self._is_complete = True
            self._start(self._write_manifest, _FINISHED)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the thread has finished, for at most `seconds`. Return True if it has."""
        if self._thread is None:
            return True
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _start(self, work: Callable[[], None], then: int) -> None:
        def run() -> None:
            try:
                work()
            except Exception as error:  # a storage may raise anything
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
            part = {"tensors": self._tensors, "chunks": listed}
            storage.write(self._part.name, json.dumps(part).encode())
            self._is_written = True
        except Exception:
            for file in written:  # no checkpoint will use it
                with suppress(OSError):
                    storage.remove(file)
            raise

    def _write_manifest(self) -> None:
        """Write the manifest from the parts of all ranks, and remove files that are no longer
        needed. Write none if this rank's own part is missing, which has been reported already."""
        storage, saved = self._policy.storage, 0
        parts = [self._part.of(rank).name for rank in range(self._part.ranks)]
        try:
            if self._is_written:
                tensors, chunks = self._read_parts(parts)
                calls = {} if self.calls is None else {_CALLS: self.calls}
                constants = {**self._constants, **calls}
                manifest = Manifest(self._part.steps, constants, tensors, chunks)
                storage.write(manifest.name, manifest.pack())
                saved = self.saved = self._part.steps
        finally:
            for name in storage.names():
                is_old = name.startswith(("probe-", "job-")) and name != self.mark
                if is_old or (name.startswith("part-") and name <= parts[-1]):
                    storage.remove(name)
            checkpoint.clean(storage, self._policy.keep, saved, self.needed())

    def _read_parts(
        self, names: list[str]
    ) -> tuple[checkpoint.Tensors, list[tuple[str, checkpoint.Chunk]]]:
        listed, tensors = [], dict[str, tuple[str, tuple[int, ...]]]()
        try:
            for name in names:
                part = json.loads(self._policy.storage.read(name))
                listed += part["chunks"]
                tensors.update(part["tensors"])
        except (OSError, ValueError) as error:
            raise DamagedCheckpoint(f"a rank has not written its part: {error}") from error
        return tensors, [
            (file, tuple(checkpoint.Piece(*piece) for piece in pieces))
            for _, file, pieces in sorted(listed)
        ]


def newest(
    storage: Storage, constants: Mapping[str, Any], damaged: list[DamagedCheckpoint] | None = None
) -> tuple[Manifest, State] | None:
    """Return the newest intact checkpoint with its state, or None. Append the defects of newer ones
    to `damaged`. Raises ValueError if a job with other constants wrote it. Raises OSError if a
    checkpoint cannot be read now but may be intact: an older one must not replace it, because other
    ranks may have read it."""
    for name in checkpoint.manifests(storage):
        try:
            manifest = checkpoint.read_manifest(storage, name)
            state = checkpoint.read_state(storage, manifest)
        except DamagedCheckpoint as error:
            if damaged is not None:
                damaged.append(error)
            continue
        compare(manifest.name, manifest.constants, constants)
        return manifest, state
    return None


def compare(name: str, saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise ValueError if the constants of a checkpoint differ from the job's own ones."""
    others = {each: (saved.get(each), now) for each, now in own.items() if saved.get(each) != now}
    if others:
        told = ", ".join(f"{each} was {was!r}, is {now!r}" for each, (was, now) in others.items())
        raise ValueError(f"the checkpoint {name} is of another job: {told}")
