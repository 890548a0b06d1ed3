# SPDX-License-Identifier: Apache-2.0
"""Records of the workers of `ddl elastic verify`: digests of everything that they compute.

Each worker writes a file of JSON lines. The kinds of lines are:
    share   a logical worker's share in a step: its batch, gradients, and the hidden state before it
    step    the loss, the state and the hidden state after the step
    seeds   the generators of Python, NumPy and PyTorch at the start of a call of `steps`
    clock   a call of the clock, or of another source that differs from run to run
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ddl_elastic.base import environment
from ddl_elastic.frameworks.protocol import Framework, Share
from ddl_elastic.hidden.marks import mark
from ddl_elastic.hidden.source import is_made_again, locate
from ddl_elastic.hidden.walk import Item, Root, Walk, is_user_code
from ddl_elastic.step.digest import digest_share

JOIN_LIMIT = 30.0  # seconds that a step waits for a joining worker
PAUSE = 0.05  # seconds that a step is delayed while a worker catches up


@dataclass(frozen=True)
class Recording:
    """The settings of one run of `ddl elastic verify`.

    folder       the folder of the workers' files
    steps        the number of steps after which the program exits
    strikes      the step after which each member is killed
    workers      the number of workers; the run waits for replacements of killed ones
    checkpoints  the folder of checkpoints, or ""
    every        steps between two checkpoints
    """

    folder: str
    steps: int
    workers: int
    strikes: Mapping[str, int] = field(default_factory=dict)
    checkpoints: str = ""
    every: int = 1000

    def dump(self) -> str:
        """Return the settings as JSON for the workers' environment."""
        return json.dumps(asdict(self))


def find_recording() -> Recording | None:
    """Return this worker's recording, or None outside of `ddl elastic verify`."""
    text = environment.recording()
    return Recording(**json.loads(text)) if text else None


class Recorder:
    """The writer of one worker's file.

    roots  the roots of the search for the program's hidden state
    known  the parts of the job's state
    """

    def __init__(self, recording: Recording, member: int) -> None:
        self.recording = recording
        self.steps = recording.steps
        path = Path(recording.folder, f"{member}.jsonl")
        self._file = path.open("a", encoding="utf-8")
        self._marks: dict[str, str] = {}  # hidden state that is written already
        self._places: set[str] = set()
        self._roots: Callable[[], tuple[Iterable[Root], Iterable[Any]]] = lambda: ((), ())
        self._share: dict[str, Any] = {}
        if _clock:
            _clock.write_to(self._write)

    def look_at(self, roots: Callable[[], tuple[Iterable[Root], Iterable[Any]]]) -> None:
        """Record hidden state from now on. `roots` returns the roots of the search, and the parts
        of the job's state."""
        self._roots = roots
        self._write({"seeds": mark_global_generators()})

    def begin_share(self, step: int, worker: int) -> None:
        """Record the start of a share, with the hidden state before it."""
        self._share = {"share": [step, worker], **self._hidden()}
        if _clock:
            _clock.is_in_share = True

    def read(self, batch: Any) -> None:
        """Record the batch of the share."""
        self._share["batch"] = mark_batch(batch)

    def computed(self, framework: Framework, share: Share) -> None:
        """Record the tensors of the computed share."""
        if _clock:
            _clock.is_in_share = False
        digest = digest_share(framework.tensors(share))
        self._share["tensors"] = {name: f"{each:08x}" for name, each in digest.tensors.items()}
        self._write(self._share)

    def committed(self, step: int, framework: Framework, threads: Sequence[str]) -> None:
        """Record the state and the loss after a step, and two numbers of threads: now, and at the
        job's start."""
        state = {name: _crc(each.data) for name, each in framework.state().items()}
        loss = float(framework.loss).hex()
        line = {"step": step, "loss": loss, "state": state, "threads": [*threads]}
        self._write({**line, **self._hidden()})

    def strike(self, step: int, group: Any) -> None:
        """Kill this process once the step that `strikes` has for its member number is reached and
        no worker is missing. If there are any strikes, also wait while a worker is missing, and
        delay the steps while its replacement catches up."""
        turn = self.recording.strikes.get(str(group.member))
        is_whole = group.comm.size == self.recording.workers and not group.observing
        if turn is not None and step >= turn and is_whole:
            self._file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        if not self.recording.strikes or group.membership is None:
            return
        if group.observing:
            time.sleep(PAUSE)
        elif group.comm.size < self.recording.workers:
            _wait(lambda: group.membership.has_plan)

    def _hidden(self) -> dict[str, Any]:
        """Return the hidden state that has changed since the last record."""
        roots, known = self._roots()
        found: dict[str, Item] = {}
        for item in Walk(known).items(roots):
            found.setdefault(f"{item.room}:{item.name}", item)
        changed: dict[str, Any] = {}
        marks = {}
        for name, item in found.items():
            if is_made_again(item):
                continue
            marks[name] = now = item.mark
            if self._marks.get(name) != now:
                changed[name] = now
                if name in self._marks and name not in self._places:
                    self._places.add(name)
                    self._write({"place": name, **describe(item)})
        for name in self._marks.keys() - marks.keys():
            changed[name] = ""
        self._marks = marks
        return {"hidden": changed}

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def describe(item: Item) -> dict[str, str]:
    """Return the description of an item: its kind, class, owner's class and line."""
    owner = item.owner
    return {
        "kind": item.kind,
        "class": f"{type(item.value).__module__.split('.')[0]}.{type(item.value).__name__}",
        "owner": getattr(owner, "co_name", "") or type(owner).__name__,
        "is_module": "yes" if hasattr(owner, "_modules") else "",
        "where": locate(item),
    }


def mark_batch(batch: Any) -> str:
    """Return a digest of a batch, which may be an instance of one of the program's classes."""
    if isinstance(batch, Mapping | Sequence) or hasattr(batch, "shape"):
        return mark(batch)
    return mark(dict(getattr(batch, "__dict__", {})))


def mark_global_generators() -> dict[str, str]:
    """Return digests of the global generators of Python, NumPy and PyTorch."""
    found = {"random": random._inst, "numpy.random": np.random.mtrand._rand}
    if torch := sys.modules.get("torch"):
        found["torch"] = torch.default_generator
    return {name: mark(each) for name, each in found.items()}


def _crc(array: Any) -> str:
    return f"{zlib.crc32(array.data):08x}"


def _wait(until: Callable[[], bool]) -> None:
    end = time.monotonic() + JOIN_LIMIT
    while not until() and time.monotonic() < end:
        time.sleep(0.01)


# ---- sources that differ from run to run ----


@dataclass
class _Clock:
    """The program's calls that read the clock or another source that differs from run to run."""

    write: Callable[[Mapping[str, Any]], None] | None = None
    is_in_share: bool = False
    seen: set[tuple[str, str, bool]] = field(default_factory=set)
    early: list[dict[str, Any]] = field(default_factory=list)  # calls before the recorder existed

    def note(self, name: str) -> None:
        frame = sys._getframe(2)
        while name.startswith(_BY_LIBRARIES) and frame.f_back and not is_user_code(frame):
            frame = frame.f_back
        if not is_user_code(frame):
            return
        where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        call = (name, where, self.is_in_share)
        if call not in self.seen:
            self.seen.add(call)
            line = {"clock": name, "where": where, "in_share": self.is_in_share}
            if self.write:
                self.write(line)
            else:
                self.early.append(line)

    def write_to(self, write: Callable[[Mapping[str, Any]], None]) -> None:
        """Write all calls, including the earlier ones."""
        self.write = write
        for line in self.early:
            write(line)
        self.early.clear()


_clock: _Clock | None = None
_BY_LIBRARIES = "os.urandom"  # called by libraries for the program
_CALLS: tuple[tuple[Any, str, tuple[str, ...]], ...] = (
    (time, "time", ("time", "time_ns", "monotonic", "monotonic_ns")),
    (time, "time", ("perf_counter", "perf_counter_ns", "process_time")),
    (os, "os", ("urandom", "getpid")),
    (random, "os", ("_urandom",)),
)


def watch_clock() -> None:
    """Start recording the places where the program reads the clock, its process id or the system's
    random numbers."""
    global _clock
    if _clock:
        return
    _clock = clock = _Clock()
    for module, package, names in _CALLS:
        for name in names:
            setattr(
                module, name, _noting(clock, f"{package}.{name.lstrip('_')}", getattr(module, name))
            )


def _noting(clock: _Clock, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def noting(*arguments: Any, **options: Any) -> Any:
        clock.note(name)
        return call(*arguments, **options)

    return noting
