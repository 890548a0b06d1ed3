# SPDX-License-Identifier: Apache-2.0
"""The returns to a checkpoint: after an audit has found that committed steps may be wrong, or after
the state of a sharded job was lost.

The worker that computes wrongly has already been expelled. All states before the first step in
which it may have been wrong are correct, and so are their checkpoints. A job with audits writes a
checkpoint of its initial state, so that a correct one always exists.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ddl_elastic.base.audits import AuditError
from ddl_elastic.frameworks.protocol import Array, Share, State
from ddl_elastic.sharded.cut import StateLost
from ddl_elastic.step.audit import Audit
from ddl_elastic.storage import checkpoint
from ddl_elastic.storage.checkpoint import DamagedCheckpoint, Storage
from ddl_elastic.storage.saving import Saver

# Returns the sum of compute(worker) over all logical workers, in arrays like the given ones.
Agree = Callable[[Callable[[int], Share], list[Array], str], list[Array]]


NONE = -1  # the steps of a checkpoint that does not exist


@dataclass(frozen=True)
class Return:
    """A return of the job to step `step`, with its state."""

    step: int
    state: State
    text: str


def settle(
    audit: Audit,
    following: int,
    begin: int,
    saver: Saver | None,
    wait: Callable[[], object],
    agree: Agree,
) -> tuple[Return | None, str]:
    """Decide how the job continues after an audit. Return the checkpoint to which it returns, or
    None if it continues, and a line for the log. All ranks call this after the same step and get
    the same result. Raises AuditError if the job stops.

    following  the next step
    begin      the first step of the current call of Loop.steps; the program cannot return to an
               earlier step
    wait       waits until no rank writes a checkpoint
    """
    assert audit.first is not None
    # The last step has been computed again without the wrong worker.
    first, last = audit.first, following - 2
    doubt = f"the results of steps {first} to {last} may be wrong" if first <= last else ""
    if doubt and audit.action == "continue":
        return None, f"{doubt}; audit_action=continue, so the job continues with them"
    wait()
    storage = saver.storage if saver else None
    target = choose(storage, first, audit.start, agree)
    if not doubt:
        return None, ""
    if audit.action == "stop":
        there = f"the checkpoint after {target} steps" if target > 0 else "the beginning"
        raise AuditError(f"{doubt}; audit_action=stop. The job continues from {there} if restarted")
    if not storage or not (target > begin or target == begin == 0):
        why = "there is no checkpoint before them"
        if target > NONE:
            why = f"the checkpoint after {target} steps is of an earlier call of job.steps"
        raise AuditError(
            f"{doubt}, and {why}. Restart the job from the beginning, or accept the results with"
            " audit_action=continue"
        )
    return read(storage, target, doubt), ""


def choose(storage: Storage | None, first: int, start: int | None, agree: Agree) -> int:
    """Run `newest_before` on the rank that has logical worker 0, and return its result on all
    ranks."""

    def compute(worker: int) -> list[Array]:
        found = newest_before(storage, first, start) if worker == 0 and storage else NONE
        return [np.array([float(found if worker == 0 else 0)])]

    (chosen,) = agree(compute, [np.empty(1)], "sum")
    return int(chosen[0])


def read(storage: Storage, target: int, why: str) -> Return:
    """Return the checkpoint after `target` steps. `why` is the reason for the log."""
    manifest = checkpoint.read_manifest(storage, checkpoint.manifest_name(target))
    text = f"{why}; the job continues from the checkpoint after {target} steps"
    return Return(target, checkpoint.read_state(storage, manifest), text)


def find_after_loss(
    error: StateLost,
    following: int,
    begin: int,
    saver: Saver | None,
    wait: Callable[[], object],
    agree: Agree,
) -> Return:
    """Return the newest checkpoint of this call of job.steps. All ranks call this after the state
    was lost and they have dropped it. Raises StateLost if there is no such checkpoint. For the
    arguments, see `settle`."""
    if saver:
        wait()
        target = choose(saver.storage, following + 1, None, agree)
        if target > begin or target == begin == 0:
            return read(saver.storage, target, str(error))
    raise StateLost(f"{error}. The job has no checkpoint in this call of job.steps") from error


def spoil(state: State) -> State:
    """Return a state of the same shapes whose floating-point numbers are all NaN, for a program
    that reads the state in a step in which it was lost."""
    return State(
        (name, replace(each, data=np.full_like(each.data, 0xFF)) if "float" in each.dtype else each)
        for name, each in state.items()
    )


def newest_before(storage: Storage, first: int, start: int | None) -> int:
    """Return the number of steps of the newest checkpoint that is certainly correct, or NONE.
    Remove newer checkpoints, because parts of them may be wrong.

    first  the first step in which a worker may have been wrong
    start  the step in which the job began; if it is not 0, the job resumed from a checkpoint
    """
    for name in checkpoint.manifests(storage):
        steps = checkpoint.steps_of(name)
        if steps >= first and steps != start:
            storage.remove(name)
            continue
        try:
            checkpoint.read_state(storage, checkpoint.read_manifest(storage, name))
        except DamagedCheckpoint:
            continue
        return steps
    return NONE
