# SPDX-License-Identifier: Apache-2.0
"""The training loop for custom programs: `for step in loop.steps(...)`. See elastic_step.py for
the steps that it yields."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from types import FrameType
from typing import Any, TypeVar

import numpy as np

from ddl_core import Comm
from ddl_elastic.base import environment
from ddl_elastic.base.audits import AuditError, find_options
from ddl_elastic.frameworks.protocol import (
    Array,
    Digest,
    Framework,
    Share,
    State,
    Summed,
    digest_parts,
)
from ddl_elastic.hidden.checks import Checks
from ddl_elastic.hidden.recording import Recorder, find_recording
from ddl_elastic.sharded.cut import StateLost
from ddl_elastic.shares.assign import assign
from ddl_elastic.shares.balance import assigned
from ddl_elastic.shares.loading import (
    Collate,
    Dataset,
    Loader,
    Reader,
    SampleStream,
    count_samples,
    count_steps,
)
from ddl_elastic.shares.sampler import Sampler, share_seed
from ddl_elastic.step import admission
from ddl_elastic.step.audit import Audit
from ddl_elastic.step.membership import Membership, NotAdmitted
from ddl_elastic.step.reform import Watch
from ddl_elastic.step.step import (
    HandOverCancelled,
    PlainArrays,
    RankGroup,
    Recovery,
    Step,
)
from ddl_elastic.step.watchdog import Watchdog
from ddl_elastic.storage import saving
from ddl_elastic.storage.checkpoint import DamagedCheckpoint
from ddl_elastic.storage.saving import Policy, Saver
from ddl_elastic.worker import change, evaluation, rollback, shared_storage
from ddl_elastic.worker.change import Arrival
from ddl_elastic.worker.checkpoint_writers import CheckpointWriters
from ddl_elastic.worker.elastic_step import ElasticStep
from ddl_elastic.worker.evaluation import EvaluationHistory
from ddl_elastic.worker.observer import Observer
from ddl_elastic.worker.reporter import Reporter

WATCHDOG = 10.0  # default, in seconds
LEFT = "the state was lost in a step that the program has left"

_log = logging.getLogger("ddl_elastic")
Result = TypeVar("Result")


# Takes a step, the number of ranks and of logical workers. Returns the rank of each worker.
Owners = Callable[[int, int, int], Sequence[int]]


@lru_cache
def _even_owners(ranks: int, workers: int) -> Sequence[int]:
    return assign(workers, [1.0] * ranks).owners


def even_owners(_step: int, ranks: int, workers: int) -> Sequence[int]:
    """Return owners that are the same in each step: the contiguous ranges that `assign` makes for
    equal speeds."""
    return _even_owners(ranks, workers)


def _clip_norm(framework: Framework) -> str | None:
    """Return the norm to which the framework clips gradients, or None if it does not clip."""
    limit = getattr(getattr(framework, "clipping", None), "limit", None)
    return None if limit is None else repr(float(limit))


class Loop:
    """A job, from the view of one rank.

    comm      the comm of all ranks; the loop replaces it after a death, and closes it at the end
    batch     samples of a step, of all logical workers together
    logical   number of logical workers; further ranks have no work
    seed      the seed of the samples' order and of all generators
    owners    returns the owner of each logical worker in a step; evaluations count as steps
    members   member numbers by rank, which stay the same when others die; None means the ranks
    membership  lets other workers join and this rank leave; None means a fixed group
    watchdog  seconds that the others wait for a rank that hangs, see watchdog.py; 0 means no limit
    reporter  reports the progress
    policy    the checkpoint policy; the loop resumes from the newest checkpoint, if there is one
    beside    True if the program does not change the state between two steps, see saving.Saver
    strict    True to make hidden state an error instead of a warning, see hidden/checks.py
    audit     the fraction of shares that another rank computes again, see audit.py
    audit_action  the action if an audit finds that committed steps may be wrong. "rollback":
              continue from an earlier checkpoint, and stop if there is none; "continue"; "stop"

    The final state depends on the program, the data, seed, batch and logical.
    """

    def __init__(
        self,
        framework: Framework,
        comm: Comm,
        *,
        batch: int,
        logical: int,
        seed: int = 0,
        owners: Owners = even_owners,
        members: Sequence[int] | None = None,
        membership: Membership | None = None,
        watchdog: float = WATCHDOG,
        reporter: Reporter | None = None,
        policy: Policy | None = None,
        beside: bool = False,
        strict: bool = False,
        audit: float | None = None,
        audit_action: str | None = None,
    ) -> None:
        environment.refuse_wire()
        self.framework = framework
        self.checks, self._strict = Checks(framework, self._report_hidden), strict
        self.batch, self.logical, self.seed = batch, logical, seed
        self.reporter = reporter or Reporter()
        self._owners = owners
        first = tuple(owners(0, comm.size, logical))
        watch = Watch(Watchdog(watchdog), membership.request_quorum if membership else None)
        self.group = RankGroup(comm, list(members or range(comm.size)), first, watch)
        self.group.membership = membership
        self.group.shards = getattr(framework, "shards", None)
        if shards := self.group.shards:
            shards.where = lambda: change.describe_position(self)
            shards.is_behind = lambda: self._arrival is not None
            shards.group = lambda: (self.group.comm, self.group.members)
            shards.follow, watch.serve = watch.follow, shards.reads.follow
            shards.reads.limit = lambda: watch.watchdog.limit / 2 if watchdog else 0.0
        rate, action = find_options(audit, audit_action)
        self.group.audit = Audit(
            *(rate, action, seed, self.reporter.found),
            self.checks.digests,
            self.checks.differs_from,
        )
        if membership:
            membership.begin(lambda *new: change.rehearse(self.framework, self.group, *new))
        self._observer: Observer | None = None  # while this joining rank catches up
        self._writers: CheckpointWriters | None = None
        self._arrival: Arrival | None = None  # until the received state is loaded
        self.past = EvaluationHistory()  # what a joining worker's program requests, too
        self._policy, self._beside = policy, beside
        self._constants: dict[str, int | str | None] = {"batch": batch, "logical": logical}
        self._constants |= {"seed": seed}
        # Of the current call; see saving.SETTINGS.
        self._settings: dict[str, int | str | None] = dict.fromkeys(saving.SETTINGS)
        self._constants["clip_norm"] = _clip_norm(framework)
        self._audits = {"audits of a million shares": round(rate * 1e6), "audit_action": action}
        watch.watchdog.observe(comm)
        # The number of the next operation of all ranks. Training steps and evaluations count from
        # 0, after the admission and the check of the storage. A rank that is and stays alone has
        # neither.
        self._is_admitted = comm.size == 1 and not membership
        self._number = 0 if self._is_admitted else -1 - (shared_storage.OPERATIONS if policy else 0)
        self._next = 0  # next training step
        self._planned = 0  # training steps of all calls of `steps`
        self._passes = self._position = 0  # passes and samples of the earlier calls of `steps`
        self._call = -1  # number of the current call of `steps`
        self._step: ElasticStep | None = None  # the one whose code the program executes
        self._stops = self._first_left = False
        self._numbers: dict[str, int | str | None] = {}  # settings that must be equal on all ranks
        self._resumed: State | None = None  # from a checkpoint; loaded after the admission
        self._checkpoint = ""  # the name of that checkpoint
        self._saved = "", 0  # its file, and the number of its steps
        self._saves_initial = False  # until the initial state of a job with audits is written
        self._passes_by = False  # this resumed job undoes the current step
        recording = find_recording()
        self.recorder = Recorder(recording, self.group.member) if recording else None

    def steps(
        self,
        data: Dataset | SampleStream,
        passes: int | None = None,
        *,
        steps: int | None = None,
        loader_workers: int = 0,
        collate: Collate | None = None,
    ) -> Iterator[ElasticStep]:
        """Yield the steps of `passes` passes over the data (default: 1). The caller iterates over
        each step to its end. A later call continues with other seeds.

        steps           number of steps, instead of passes; required for a stream
        loader_workers  processes that read ahead for each rank; they do not change the result
        collate         makes a batch from a share's samples; None means the framework's function
        """
        self._settings = dict.fromkeys(saving.SETTINGS)
        sampler = self._sample(data)
        number = count_steps(sampler, passes, steps)
        source = _Source(data, sampler, self._owned, loader_workers, collate)
        return self._start(source, number, ElasticStep, sys._getframe(1))

    def _sample(self, data: Dataset | SampleStream, local_steps: int = 1) -> Sampler:
        """Return the sampler of the next call. With several local steps, each of them counts as a
        share."""
        batch, shares = self.batch * local_steps, self.logical * local_steps
        begin = self._planned, self._passes, self._position
        return Sampler(count_samples(data), batch, shares, self.seed, *begin)

    def _start(
        self, source: _Source, number: int, make_step: MakeStep, frame: FrameType
    ) -> Iterator[Any]:
        """Begin a call of `steps` with `number` steps. `frame` is the program's stack frame."""
        data, sampler, collate = source.data, source.sampler, source.collate
        if not self._numbers:  # this is the first call
            self._constants |= self._settings
            counts = {"len(data)": sampler.samples, "steps": number}
            counts["steps between checkpoints"] = self._policy.every if self._policy else None
            counts["copies"] = self.group.shards.copies if self.group.shards else None
            self._numbers = {**counts, **self._constants, **self._audits}
        framework, loader_workers = self.framework, source.loader_workers
        reader = Reader(data, sampler, self.seed, framework.seed, collate or framework.collate)
        self.checks.begin(data, collate, frame)
        if self.recorder:
            self.recorder.look_at(self.checks.roots)
            loader_workers = 0  # keep the data set in this process
        begin = self._planned
        self._planned += number
        self._resume()
        if number:
            self._compare_call(begin)
        span = range(self._next, self._planned)
        self._begin_resumed(begin, span)

        def load(steps: range) -> Loader:
            member = self.group.member
            return Loader(framework, reader, source.owned, steps, loader_workers, member)

        self._passes += sampler.passes(number)
        self._position += number * sampler.batch
        return self._run(_Call(begin, span, sampler.batch, load, make_step))

    def _run(self, call: _Call) -> Iterator[ElasticStep]:
        self._call += 1
        try:
            yield from self._run_call(call)
        finally:
            self.checks.end()
        # Seed the generators, so that the program's random numbers before the next call are the
        # same on all ranks, including those that have skipped this call.
        self.framework.seed(share_seed(self.seed, call.span.stop, self.logical + 1))
        if self.recorder and self._next >= self.recorder.steps:
            raise SystemExit(0)

    def _run_call(self, call: _Call) -> Iterator[ElasticStep]:
        if self._stops:
            self.log("job.stop() has ended the training: this call of job.steps has no steps")
            return
        if self._is_lost:
            raise StateLost(LEFT)
        span, audit = call.span, self.group.audit
        if audit and self._call == 0 and not self.is_new:
            audit.start = self._next
        if self.has_missed(self._call) or (self.is_new and call.begin == span.stop):
            return
        if not self.is_new:
            watchdog = self.group.watch.watchdog.seconds
            self.reporter.begin(span.stop, call.batch, self.logical, watchdog)
        self.past.is_open = False
        try:
            has_ended = False
            while not has_ended:
                yield from self._run_steps(call)
                if not self._arrival:
                    self.past.head = []
                    change.send_state(self)  # a rank that sent it may have died in the last step
                self._enter()
                if self.has_missed(self._call):
                    return
                self.arrive()
                has_ended = self._end_call(call.begin)
        finally:
            self._step = None
            self.past.is_open = self._is_admitted  # else a joining program evaluates itself

    def _run_steps(self, call: _Call) -> Iterator[ElasticStep]:
        """Yield the remaining steps of a call of `steps`."""
        span, load, audit = call.span, call.load, self.group.audit
        loader = load(range(self._next, span.stop))
        # A resumed job compares the ranks in its first step, like a joining worker, and undoes it.
        passes_by = self._awaits_state and call.begin < span.stop
        try:
            while (self._next < span.stop and not self._stops) or passes_by:
                if not self._observer:  # an observed step takes as long as the other ranks' steps
                    self.group.watch.watchdog.begin_step()
                number = call.begin if passes_by else self._next
                step = call.make_step(self, number, loader, span.stop)
                if not self._arrival:
                    self.past.head = []
                self._step = step
                yield step
                self._step = None
                self.past.is_open = False
                if not step.is_agreed:
                    raise RuntimeError(
                        f"step {step.number} is not agreed on: iterate over it to its end"
                    )
                if self._arrival or passes_by:
                    self._stops = False  # it was not for this step
                if self._arrival:
                    break
                if passes_by:
                    self.reporter.recovered(step.recovery, step.number)
                    self._undo()
                    self._passes_by = passes_by = False
                    if span:
                        self._resumed = None
                    continue
                if step.lost:
                    self._stops = False  # the program repeats this step
                    self._reload(step.lost, call.begin)
                    loader.close()
                    loader = load(range(self._next, span.stop))
                    continue
                self.checks.committed()
                if self.recorder:
                    self._record(step.number)
                self.reporter.recovered(step.recovery, step.number)
                self.reporter.committed(step.number, self.framework.loss, self.group.comm.size)
                if audit and audit.first is not None:
                    if self._settle(audit, call.begin):
                        self._stops = False
                        loader.close()
                        loader = load(range(self._next, span.stop))
                elif self._writers:
                    self._writers.boundary(self._next, step.is_behind)
                if self._stops:
                    break
                if self._writers and self.group.membership and self.group.membership.ends_job:
                    self._writers.save_last(self._next)
        finally:
            loader.close()

    def _end_call(self, begin: int) -> bool:
        """End a call of `steps`. Return False if this has shown that the state is lost, and the job
        has returned to a checkpoint. Raises StateLost if there is none."""
        try:
            if not self._awaits_state:  # otherwise the call has no steps
                self._end()
            self.reporter.done(self._next, self.framework.loss, self.group.comm, self._digest)
        except StateLost as error:
            assert self.group.shards
            self.group.shards.forget()
            stop = self._next
            self._reload(error, begin)
            self._stops = self._stops and self._next == stop  # else the program repeats a step
            return False
        return True

    def _record(self, number: int) -> None:
        """Record the step's result for `ddl elastic verify`. Stop after the number of steps that it
        has requested."""
        assert self.recorder
        self.recorder.committed(number, self.framework, self.checks.threads)
        self.recorder.strike(number, self.group)
        if number + 1 >= self.recorder.steps:
            self.stop()

    def _report_hidden(self, text: str) -> None:
        """Log a warning about hidden state. Raises RuntimeError if the job is strict."""
        if self._strict:
            raise RuntimeError(text)
        if self._is_first:
            _log.warning(text)

    def _settle(self, audit: Audit, begin: int) -> bool:
        """Continue after an audit has found a worker that computes wrongly. Return True if the job
        returns to a checkpoint. Raises AuditError if it stops."""
        group, saver, first = self.group, self.group.saver, audit.first or 0
        for rank in range(group.comm.size):
            if rank not in group.whole:
                group.comm.expel(rank, "it has joined while the results may have been wrong")

        wait = self._wait_for_saver
        try:
            found, text = rollback.settle(audit, self._next, begin, saver, wait, self.agree)
        except AuditError as error:
            self.reporter.stopped(self._next - 1, first, str(error))
            raise
        if text:
            self.log(text)
        if found:
            self.framework.load(found.state)
            self._next = found.step
            self.past.return_to(found.step)
            self.reporter.rolled_back(found.step, first, found.text)
        audit.settled(self._next)
        return found is not None

    def _reload(self, error: StateLost, begin: int) -> None:
        """Continue from the newest checkpoint after the state was lost. Raises StateLost if there
        is none."""
        saver, wait = self.group.saver, self._wait_for_saver
        found = rollback.find_after_loss(error, self._next, begin, saver, wait, self.agree)
        self.log(found.text)
        self.framework.load(found.state)
        self._next = found.step
        self.past.return_to(found.step)

    def _wait_for_saver(self) -> None:
        """Wait until no rank writes a checkpoint."""
        for _ in range(2):  # after the first vote, a rank may write a manifest
            if self.group.saver:
                self.group.saver.wait()
            self._finish()

    def stop(self) -> None:
        """End the training after the current step. Later calls of `steps` yield no steps. All ranks
        call this in the same step. A job that resumes from a checkpoint continues to train."""
        if not self._arrival:  # otherwise the other ranks have not stopped at this point
            self._stops = True

    def map(
        self,
        data: Dataset,
        function: Callable[[Any], Any],
        *,
        batch: int,
        loader_workers: int = 0,
        collate: Collate | None = None,
    ) -> evaluation.Table:
        """Call function(batch), which returns one or several numbers, for each batch of the data.

        Return a float64 array with one row for each batch, in the order of the data, on all ranks.
        The ranks share the batches; if a rank dies, the others evaluate its batches. All ranks call
        this between two steps. The function runs without gradients and in evaluation mode.
        """
        if self._arrival:
            return self.past.take()
        self._undo()
        framework, shards = self.framework, self.group.shards
        plan = evaluation.EvaluationPlan(len(data), batch, self.logical)
        self._come()
        reader = Reader(data, plan, self.seed, framework.seed, collate or framework.collate)
        group = self.group
        loader = Loader(
            framework,
            reader,
            lambda _: plan.batches(group.owned),
            range(1),
            loader_workers,
            group.member,
        )
        watchdog = group.watch.watchdog

        def run(agree: evaluation.Agree | None) -> evaluation.Table:
            if shards and agree:
                shards.gather(self._finish)
            given = framework, plan, loader, function, self.seed, group
            return evaluation.run(*given, agree, watchdog.expect)

        try:
            table = self._operate(lambda: run(self.agree), lambda: run(None))
            self.past.keep(table)
            return table
        finally:
            watchdog.expect(0)
            loader.close()

    @property
    def loss(self) -> float:
        """The loss of the last committed step over the whole batch, equal on all ranks."""
        return self.framework.loss

    def hash(self) -> str:
        """Return the SHA-256 of the current state: the model, the optimizer, and everything else
        that checkpoints contain. After the last step, it is the digest that reports show. In a
        sharded job, all ranks call it, like `state`."""
        return self._operate(self._digest, lambda: Digest("0" * 64, {})).whole

    def _digest(self) -> Digest:
        """Return the digest of the current state. A sharded job gathers one tensor at a time."""
        shards = self.group.shards
        self._undo()
        if not (shards and shards.has_begun) or self._arrival:
            return digest_parts(self.framework.state())
        return shards.find_digest(self._finish)

    def state(self) -> State:
        """Return the state by name. In a sharded job all ranks call this, between two steps. It
        gathers the whole model and optimizer on each rank."""
        shards, framework = self.group.shards, self.framework
        self._undo()

        def export() -> State:
            if shards and shards.has_begun and not self._arrival:
                shards.export(self._finish)
            return framework.state()

        return self._operate(export, lambda: rollback.spoil(framework.state()))

    def _operate(self, operation: Callable[[], Result], lost: Callable[[], Result]) -> Result:
        """Return the result of an operation that the program calls on all ranks. In a step whose
        state is lost, return the result of `lost`, so that the program continues to the end of the
        step and then returns to a checkpoint. Raises StateLost outside of a step, and if there are
        no checkpoints."""
        step, shards = self._step, self.group.shards
        if self._is_lost and not (step and step.lost):
            raise StateLost(LEFT)
        if step and step.lost:
            return lost()
        try:
            return operation()
        except StateLost as error:
            if not (step and shards and self.group.saver):
                raise
            shards.forget()
            step.lost = error
        return lost()

    @property
    def is_writer(self) -> bool:
        """True on the rank that writes files and messages. If that rank dies, another rank replaces
        it. False while a resumed job has not loaded its checkpoint yet, and on all ranks in a step
        whose state is lost."""
        is_void = self._awaits_state or self._passes_by or (self._step and self._step.lost)
        return self._is_first and not is_void and not self._is_lost

    @property
    def _is_lost(self) -> bool:
        """True from the loss of the state of a sharded job until a checkpoint is loaded."""
        return self.group.shards is not None and self.group.shards.is_lost

    @property
    def _awaits_state(self) -> bool:
        """True until this resumed job has compared the initial states and loads its checkpoint."""
        return self._resumed is not None and self.awaits_admission

    @property
    def _is_first(self) -> bool:
        """True on the first rank of the job that has not finished."""
        is_first = self.group.comm.rank == 0 and not self.group.writer_is_done
        return is_first and not self.is_new and not self._arrival

    def log(self, text: str = "", **numbers: float) -> None:
        """Log a line of text and named numbers, once for all ranks."""
        if self.is_writer:
            shown = [f"{name} {number:.6g}" for name, number in numbers.items()]
            self.reporter.line("  ".join([text, *shown] if text else shown))

    def close(self) -> None:
        """Send the remaining lines, and close the comm and the membership."""
        with suppress(OSError):  # the coordinator has exited
            self.reporter.flush()
        self.group.watch.close()
        if self.group.shards:
            self.group.shards.reads.stop()
        self.group.comm.close()
        if self.group.membership:
            self.group.membership.close()

    # ---- checkpoints ----

    def _resume(self) -> None:
        """Find the newest checkpoint, to resume from it before the first step. A joining worker
        receives the state from the other ranks instead."""
        if self._policy is None or self.group.saver:
            return
        audit = self.group.audit
        saver = self.group.saver = Saver(self._policy, self._constants, self._beside)
        if audit and audit.rate:
            # A rollback removes the checkpoint of the step since which a rank may be wrong.
            saver.needed = lambda: (audit.start or 0, audit.trusted(self.group.members) - 1)
        shards, reporter = self.group.shards, self.reporter
        own_state = shards.own_state if shards else self.framework.state
        self._writers = CheckpointWriters(saver, self.group, own_state, self._finish, reporter)
        if self.is_new:
            saver.skip()
            return
        self._saves_initial = bool(audit and audit.rate)
        damaged: list[DamagedCheckpoint] = []
        found = saving.newest(self._policy.storage, self._constants, damaged)
        for error in damaged:
            self.log(f"skipped a damaged checkpoint: {error}")
            saver.damaged.update(filter(None, [error.file]))
        if found:
            manifest, state = found
            self._next, self._checkpoint = manifest.steps, manifest.description
            self._saved = manifest.name, manifest.steps
            saver.resume(manifest.constants)
            self.log(f"resumed after {manifest.steps} steps")
            self._resumed, self._saves_initial = state, False

    def _compare_call(self, begin: int) -> None:
        """Keep the settings of a call of `steps` for the next checkpoints. Raises ValueError if the
        call had begun with other ones before the checkpoint from which this job has resumed."""
        saver, (name, steps) = self.group.saver, self._saved
        if saver and saver.calls is not None:
            known = saver.settings_at(begin)
            if begin < steps:
                saving.compare(name, known, self._settings)
            if self._settings != known:
                saver.calls.append([begin, self._settings])

    def _begin_resumed(self, begin: int, span: range) -> None:
        """Load the checkpoint when a call of `steps` begins, even if that call is already finished.
        This undoes the changes that a resumed program repeats between finished calls, such as
        schedule steps, because the checkpoint contains them. If the checkpoint was written at the
        end of the last call, it lacks the later changes, so they are kept."""
        if self._resumed is None or self.awaits_admission:
            return
        if not span:
            self.framework.load(self._resumed)
        elif begin and begin == self._next:
            self._resumed = None
        else:
            self.framework.load(self._resumed)
            self._resumed = None

    def save_initial_state(self) -> None:
        """Write the checkpoint before the first step, to which a job with audits may return."""
        if self._saves_initial and self._writers:
            self._saves_initial = False
            self._writers.boundary(0, is_behind=False)

    def _undo(self) -> None:
        """Undo the effect of a step that a resumed program skips."""
        if self._passes_by:
            assert self._resumed is not None
            self.framework.load(self._resumed)

    # ---- operations of all ranks ----

    @property
    def awaits_admission(self) -> bool:
        """True if the ranks have not yet compared their reference shares."""
        return not self._is_admitted or self.is_new

    @property
    def is_new(self) -> bool:
        """True if this rank is about to join a running job."""
        membership = self.group.membership
        return membership is not None and membership.is_new and not self._arrival

    def admit(self, reference: Share) -> Recovery | None:
        """Continue with the ranks that computed the same reference share. Raises AdmissionError on
        the other ranks. Return the recovery from deaths."""
        self._is_admitted, self._passes_by = True, self._resumed is not None
        self.framework.begin(0)  # restore the buffers
        member, numbers = self.group.member, self._numbers
        candidate = admission.describe(member, self.framework, reference, numbers, self._checkpoint)
        if self.is_new:
            self.framework.free(reference)
            self._take_arrival(change.join(self, candidate))
            return None
        step = admission.Admission(self.group, self._number, candidate)
        self._complete(step, lambda _: [])
        self.framework.free(reference)
        if self.group.saver:
            shared_storage.check(self.group.saver, self.group, self.agree, self._finish)
        self.reporter.admitted(step.first)
        self.past.open(evaluation.NONE if self._passes_by else self._next)
        return step.deaths

    def agree(self, compute: Callable[[int], Share], empty: list[Array], op: str) -> list[Array]:
        """Compute the sum or average of compute(worker) over all logical workers, between two
        training steps. Return the arrays `empty`, which then hold the result."""
        step = self.new_step(PlainArrays(empty, op), f"an evaluation before step {self._next}")
        self._complete(step, compute)
        self.reporter.recovered(step.recovery, max(0, self._next - 1))
        self._finish()
        return empty

    def _finish(self, told: bool = False) -> bool:
        """Wait until every rank has committed the last step. If a rank left earlier and another one
        died, the survivors could not learn that the first one had committed it. Return True if a
        rank with shares has passed True."""
        found = np.zeros(1)
        step = self.new_step(PlainArrays([found], "sum"))
        try:
            self._complete(step, lambda _: [np.array([float(told)])])
        finally:
            if step.recovery and not step.follows:  # those that have left have not died
                recovery = replace(step.recovery, adopted=0)
                self.reporter.recovered(recovery, max(0, self._next - 1))
        self._first_left = step.first_left
        return bool(found[0])

    def _end(self) -> None:
        """End a call of `steps`. If rank 0 leaves the comm before the last vote without having
        died, its program has failed after a step. Rank 0 then does not count as a writer that has
        finished."""
        self._finish()
        if self._writers:
            self._writers.save_last(self._next)
        else:
            self._finish()
        self.group.writer_is_done = self._first_left

    def hand_over(self, members: Sequence[int]) -> None:
        """Move the ranges of a sharded state to these members of the group. If a rank dies
        meanwhile and no rank has switched, the plan is cancelled and the ranges stay. If the state
        is lost, the next step notices this on all ranks, and in all groups."""
        shards = self.group.shards
        assert shards
        shards.keepers = [each for each in self.group.members if each in members]
        try:
            with suppress(HandOverCancelled, StateLost):
                self._finish()
        finally:
            shards.keepers = None

    def _come(self) -> None:
        """Stop observing: from now on this rank's program takes part in the operations."""
        if self._observer:
            if self._observer.take(self._number):
                raise RuntimeError(
                    "this process calls another operation than the other ranks before step"
                    f" {self._next}: the program must do the same in all processes"
                )
            self._observer = None

    def _take_arrival(self, arrival: Arrival) -> None:
        self._arrival = arrival
        self._observer = arrival.observer
        self.past.tables, self.past.head = arrival.tables, arrival.head
        self._number, self._next = arrival.number, arrival.next
        if self.group.audit:
            self.group.audit.learn(arrival.audit)

    def _enter(self) -> None:
        """Join the other ranks of a sharded job, once the program has reached their call."""
        while self._arrival and self._arrival.plan and not self.has_missed(self._call):
            self._take_arrival(change.enter(self, self._arrival.plan))

    def follow_plan(self) -> None:
        """Switch to the planned group if the ranks have agreed, and send the state if it is due.
        Each step calls this when it begins, because the program of a joining rank also starts at
        the beginning of a step. The operations that this program runs between two steps come
        later."""
        if not self._arrival:
            self.past.begin(self._next)
            change.follow_plan(self)
            change.send_state(self)

    def has_missed(self, call: int) -> bool:
        """Return True if this rank had not joined yet when the others ran this call of `steps`."""
        return self._arrival is not None and self._arrival.call > call

    def arrives(self, stop: int) -> bool:
        """Return True if this rank takes part in a step before `stop` of the current call."""
        self._enter()
        return not self._passes_by and not self.has_missed(self._call) and self._next < stop

    def arrive(self) -> None:
        """Load the received state, which moves the program to the other ranks' position at that
        time. Raises NotAdmitted if the state does not fit this rank's model."""
        if not self._arrival:
            return
        try:
            self.framework.load(self._arrival.state)
        except ValueError as error:
            raise NotAdmitted(
                f"rank {self.group.member} cannot join before step {self._next}: {error}. The other"
                " workers' program has changed its model or optimizer since its start; do so"
                " between two calls of job.steps, which a joining worker executes as well"
            ) from error
        self._arrival = None

    def replay(self) -> bool:
        """Copy the result of an observed training step to the framework. Return False if there is
        none, so that this rank must take part in the step."""
        kept = self._observer and self._observer.take(self._number)
        if not kept:
            self._observer = None
            return False
        for into, found in zip(self.framework.result(), kept.result(), strict=True):
            into[...] = found
        assert self._observer
        self._observer.free(kept)
        return True

    def _complete(self, step: Step, compute: Callable[[int], Share]) -> None:
        for worker in step.shares():
            step.add(worker, compute(worker))
        self.advance(step)

    def new_step(self, summed: Summed, name: str = "", **options: bool) -> Step:
        self._come()
        return Step(self.group, self._number, summed, name, **options)

    def advance(self, step: Step | None, trained: bool = False) -> None:
        """Continue after a committed step, and set the owners of the next one. `step` is None if
        this rank has only observed it."""
        self._number += 1
        self._next += trained
        if self.group.shards:
            self.group.shards.reads.stop()  # after a vote, no rank has open requests
        if step and not step.behind:
            self.share_out(self._number)

    def share_out(self, number: int) -> None:
        """Assign the logical workers to ranks for the step of this number."""
        self.group.owners = tuple(self._map(number))

    def _map(self, number: int) -> Sequence[int]:
        group, whole = self.group, self.group.whole
        if group.speeds and self._owners is even_owners:
            speeds = tuple(group.speeds[group.members[rank]] for rank in whole)
            owners: Sequence[int] = assigned(self.logical, speeds).owners
        else:
            owners = self._owners(number, len(whole), self.logical)
        return [whole[owner] for owner in owners]

    @property
    def position(self) -> dict[str, int]:
        """The position of the job between two steps."""
        return {"number": self._number, "next": self._next, "call": self._call}

    def _owned(self, step: int) -> Collection[int]:
        """Return this rank's logical workers in a training step, by the current owners."""
        number, own, audit = (
            self._number + step - self._next,
            self.group.comm.rank,
            self.group.audit,
        )
        owners = self.group.owners if step == self._next else tuple(self._map(number))
        audits = audit.plan(number, owners).items() if audit else ()
        owned = {worker for worker, rank in enumerate(owners) if rank == own}
        return owned.union(worker for worker, rank in audits if rank == own)


MakeStep = Callable[[Loop, int, Loader, int], ElasticStep]  # see ElasticStep


@dataclass(frozen=True)
class _Source:
    """The samples of a call of `steps`, and how they are read. See Loop.steps and Loader."""

    data: Dataset | SampleStream
    sampler: Sampler
    owned: Callable[[int], Collection[int]]
    loader_workers: int
    collate: Collate | None


@dataclass(frozen=True)
class _Call:
    """A call of `steps`.

    begin      its first step
    span       its remaining steps, if the job resumes in it
    batch      the number of samples in a step
    load       returns the loader of these steps
    make_step  see ElasticStep
    """

    begin: int
    span: range
    batch: int
    load: Callable[[range], Loader]
    make_step: MakeStep
