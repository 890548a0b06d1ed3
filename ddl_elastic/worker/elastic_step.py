# SPDX-License-Identifier: Apache-2.0
"""One step of a program's loop: `for x, y in step`.

Iterating over a step yields the batches of this process's shares. The iteration also handles
recovery: after a death it yields the adopted shares, and it ends when the step is agreed on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from ddl_elastic.frameworks.protocol import MODE, Framework, Ready, Share, Summed
from ddl_elastic.hidden.checks import Checks
from ddl_elastic.hidden.recording import Recorder
from ddl_elastic.sharded.cut import StateLost
from ddl_elastic.shares.loading import Loader
from ddl_elastic.shares.sampler import share_seed
from ddl_elastic.step.digest import ShareDigest, digest_share
from ddl_elastic.step.step import RankGroup, Recovery, Step
from ddl_elastic.worker.reporter import Reporter


class SteppingLoop(Protocol):
    """The attributes of ddl_elastic.worker.loop.Loop that a step uses."""

    group: RankGroup
    reporter: Reporter
    checks: Checks
    recorder: Recorder | None
    logical: int
    seed: int

    @property
    def framework(self) -> Framework: ...

    @property
    def awaits_admission(self) -> bool: ...

    @property
    def position(self) -> dict[str, int]: ...

    def admit(self, reference: Share) -> Recovery | None: ...

    def save_initial_state(self) -> None: ...

    def arrives(self, stop: int) -> bool: ...

    def follow_plan(self) -> None: ...

    def arrive(self) -> None: ...

    def replay(self) -> bool: ...

    def new_step(self, summed: Summed, name: str = "", **options: bool) -> Step: ...

    def advance(self, step: Step | None, trained: bool = False) -> None: ...


class ElasticStep:
    """One step of a loop. Iterating over it yields the batches of this process's shares."""

    def __init__(self, loop: SteppingLoop, number: int, loader: Loader, stop: int) -> None:
        self.number = number  # counted from 0, over all passes
        self._stop = stop  # the first step after the current call
        self.worker = -1  # the logical worker of the batch that was yielded last
        self.is_agreed = False
        self._loop, self._loader = loop, loader
        self._step: Step | None = None
        # The error if the state was lost in this step. The program then repeats it, or continues
        # from an earlier one.
        self.lost: StateLost | None = None
        self._admission: Recovery | None = None
        self._computed: Share | None = []  # the last share; None until it is computed

    @property
    def is_behind(self) -> bool:
        """True if this rank has not seen the end of the step's vote."""
        return self._step is not None and self._step.behind

    @property
    def recovery(self) -> Recovery | None:
        """The cost of deaths in this step, or None if there were none."""
        found = self._step.recovery if self._step else None
        return replace(found, step=self.number) if found else self._admission

    def __iter__(self) -> Iterator[Any]:
        loop, framework = self._loop, self._loop.framework
        if self.lost:  # an operation before the step has noticed it
            self.is_agreed = True
            return
        if loop.awaits_admission:
            framework.result()
            yield from self._reference()
            self._admission = loop.admit(self._computed or [])
        loop.save_initial_state()
        if not loop.arrives(self._stop):
            self._pass_by()
            return
        self._begin()
        if audit := loop.group.audit:
            audit.step = self.number
        if not loop.replay():
            self._step = loop.new_step(
                framework,
                f"step {self.number}",
                may_switch=self.number + 1 < self._stop,
                trains=True,
            )
            if self._step.has_audits:
                self._step.record_state(self._digest_state())
            try:
                yield from self._shares(self._step)
            except StateLost as error:
                assert loop.group.shards
                loop.group.shards.forget()
                self.lost, self.is_agreed = error, True
                return
        if loop.group.saver:
            loop.group.saver.wait_for_copy()
        # Make the random numbers of an optimizer or a schedule the same on all ranks.
        framework.seed(share_seed(loop.seed, self.number, loop.logical))
        self._apply()
        loop.advance(self._step, trained=True)
        self.is_agreed = True

    def _apply(self) -> None:
        self._loop.framework.apply()

    def _shares(self, step: Step) -> Iterator[Any]:
        """Yield the batches of this rank's shares."""
        loop = self._loop
        for worker in step.shares():
            began = time.monotonic()
            yield from self._share(worker, partial(self._loader.take, self.number))
            if step.is_audit:
                loop.reporter.audited()
            else:
                loop.reporter.computed(time.monotonic() - began)

    def _reference(self) -> Iterator[Any]:
        """Yield the reference batch for the admission check twice, as logical worker 0's share.
        Both results have the same bits unless the program keeps state from the first computation.
        The batch is always one of step 0, even after a resume, because workers that join later
        compute it with that step's random numbers."""
        loop = self._loop
        number, self.number = self.number, 0
        yield from self._share(0, partial(self._loader.read, 0))
        first, marks = self._digest(), loop.checks.marks()
        loop.framework.free(self._computed or [])
        yield from self._share(0, partial(self._loader.read, 0))
        if self._digest() != first:
            loop.checks.differs(marks)
        self.number = number

    def _digest(self) -> ShareDigest:
        """Return the digest of the last computed share."""
        return digest_share((str(n), array) for n, array in enumerate(self._computed or []))

    def _digest_state(self) -> ShareDigest:
        """Return the digest of the state before the step. It excludes the state that the program
        saves with also=, which a mistake in the program may corrupt on one rank."""
        loop, framework = self._loop, self._loop.framework
        framework.seed(share_seed(loop.seed, self.number, loop.logical))
        framework.begin(0)  # the buffers are as they were
        state = sorted(framework.state().items())  # a loaded state may have another order
        return digest_share(
            (name, each.data) for name, each in state if not name.startswith((MODE, "also."))
        )

    def _pass_by(self) -> None:
        """Skip a step of a call that this rank has missed, or the first step of a resumed job. The
        program computes with filler values, and loading the received state or the checkpoint undoes
        their effect."""
        framework, shards = self._loop.framework, self._loop.group.shards
        for array in framework.result():
            array.fill(1)
        if shards:  # this rank has received ranges, which must not change
            shards.abandon()
        else:
            self._apply()
        self.is_agreed = True

    def _begin(self) -> None:
        """Switch to a planned group, move a joining worker to the other ranks' position, and begin
        the step."""
        loop = self._loop
        loop.follow_plan()
        loop.arrive()
        if self.number != loop.position["next"]:
            self.number = loop.position["next"]
            self._loader.seek(self.number)

    def _share(self, worker: int, read: Callable[[int], Any]) -> Iterator[Any]:
        """Yield the batch of a worker's share, which `read` returns. Raises RuntimeError if the
        program did not compute the share."""
        loop, framework = self._loop, self._loop.framework
        recorder = loop.recorder if self._step else None
        if recorder:
            recorder.begin_share(self.number, worker)
        batch = read(worker)
        if recorder:
            recorder.read(batch)
        framework.seed(share_seed(loop.seed, self.number, worker))
        framework.begin(worker)
        self.worker, self._computed = worker, None
        yield batch
        if self._computed is None:
            raise RuntimeError(
                f"a share of step {self.number} was not computed: call step.backward(loss) for each"
                " batch that the step yields"
            )

    def backward(self, loss: Any, weight: Any = 1.0) -> None:
        """Compute the gradients of this share. Replaces loss.backward().

        weight  the number of terms if the loss is a sum. The gradients of all shares are then added
                and divided by the sum of all weights. Without weights they are averaged.
        """
        self._compute(lambda ready: self._loop.framework.backward(loss, ready, weight))

    def run(self, batch: Any) -> None:
        """Compute this share in a job without a custom loop."""
        self._compute(lambda ready: self._loop.framework.run(batch, ready))

    def _compute(self, compute: Callable[[Ready | None], Share]) -> None:
        if self._computed is not None:
            raise RuntimeError("step.backward() is called once for each batch of the step")
        if self._step is None:  # the reference share of the admission
            self._computed = compute(None)
            return
        step, framework, recorder = self._step, self._loop.framework, self._loop.recorder
        share = self._computed = compute(None if recorder else step.early(self.worker))
        if recorder:
            recorder.computed(framework, share)
        if step.needs_digest(self.worker):
            step.record(self.worker, digest_share(framework.tensors(share)))
        if step.is_audit:
            framework.free(share)
        else:
            step.add(self.worker, share)
