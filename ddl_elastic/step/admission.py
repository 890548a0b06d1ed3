# SPDX-License-Identifier: Apache-2.0
"""The check before a job's first step that all ranks compute the same bits.

Library versions, processors and thread counts change the rounding. Each rank therefore computes the
share of logical worker 0 in step 0. Ranks whose results differ from the results of rank 0 leave the
comm, and the others continue without them. The others do not expel these ranks. An expelled rank
that then leaves still counts in the vote, so the others could continue only with a majority.
"""

from __future__ import annotations

import hashlib
import json
import logging
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace

import numpy as np

from ddl_elastic.base import environment
from ddl_elastic.base.protocol import Fingerprint
from ddl_elastic.frameworks.protocol import Digest, Framework, Share, digest_parts
from ddl_elastic.step.membership import close
from ddl_elastic.step.reform import LOST
from ddl_elastic.step.step import Phase, PlainArrays, RankGroup, Recovery, Step

ROOM = 8192  # bytes of a packed fingerprint
LONGEST = 100  # maximum number of characters of an environment value

_log = logging.getLogger("ddl_elastic")


class AdmissionError(RuntimeError):
    """Error: this rank computes different bits than rank 0."""


class Admission(Step):
    """A step that decides which ranks may train. It compares fingerprints instead of voting."""

    def __init__(self, group: RankGroup, number: int, own: Fingerprint) -> None:
        super().__init__(group, number, PlainArrays([]))
        self.refused: set[int] = set()  # member numbers
        self._own = own
        self.first = self._own  # the fingerprint of rank 0, once the ranks have compared

    @property
    def deaths(self) -> Recovery | None:
        """The recovery from the deaths of members that were not refused, or None if there were
        none."""
        if not self.recovery or self.refused.issuperset(self.recovery.died):
            return None
        died = [each for each in self.recovery.died if each not in self.refused]
        return replace(self.recovery, step=0, died=died, adopted=0)

    def _vote(self) -> None:
        comm = self._group.comm
        table = np.empty((comm.size, ROOM), np.uint8)
        comm.allgather(pack(self._own), table.reshape(-1))
        candidates = [unpack(row.tobytes()) for row in table]
        first = self.first = candidates[0]
        compare_checkpoints(candidates)
        refused = {
            rank: why for rank, each in enumerate(candidates) if (why := compare(first, each))
        }
        self.refused.update(candidates[rank].member for rank in refused)
        if refused:
            with suppress(*LOST):
                comm.barrier()  # all have the table
            if comm.rank in refused:
                close(comm)
                raise AdmissionError(refused[comm.rank])
            self._go_on_without(refused)
        self.phase = Phase.AGREED

    def _prepare(self) -> None:
        """Do nothing: before the first step each rank has the whole state."""

    def _go_on_without(self, refused: Mapping[int, str]) -> None:
        """End the comm. Raises Aborted, after which the ranks that are not refused recover as they
        do after a death."""
        comm = self._group.comm
        for why in refused.values() if comm.rank == 0 else ():
            _log.warning(why)
        comm.abort("some ranks are refused")
        comm.barrier()


def describe(
    member: int,
    framework: Framework,
    reference: Share,
    job: dict[str, int | str | None],
    checkpoint: str = "",
) -> Fingerprint:
    """Return this process's fingerprint, with the reference share that it has computed, the
    settings of its job and the name of the checkpoint that it has read."""
    found = hashlib.sha256()
    for array in reference:
        found.update(array.data)
    state = digest_parts(framework.state())
    return Fingerprint(
        member,
        socket.gethostname(),
        state.whole,
        found.hexdigest(),
        {**framework.environment(), **environment.settings()},
        state.parts,
        job,
        checkpoint,
    )


def pack(candidate: Fingerprint) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    values = {name: value[:LONGEST] for name, value in candidate.environment.items()}
    fields = {**asdict(candidate), "environment": values}
    text = json.dumps(fields).encode()
    if len(text) > ROOM:
        raise ValueError(f"the description of {candidate.name} has {len(text)} bytes: {fields}")
    return np.frombuffer(text.ljust(ROOM), np.uint8)


def unpack(text: bytes) -> Fingerprint:
    return Fingerprint(**json.loads(text))


def compare_checkpoints(candidates: Sequence[Fingerprint]) -> None:
    """Raise RuntimeError on all ranks if they resume from different checkpoints."""
    first = candidates[0]
    for other in candidates:
        if other.checkpoint != first.checkpoint:
            raise RuntimeError(
                f"{other.name} continues from {_name_checkpoint(other)}, and {first.name} from"
                f" {_name_checkpoint(first)}. All must read the same checkpoint: check that both"
                " have access to the location of the checkpoints"
            )


def _name_checkpoint(candidate: Fingerprint) -> str:
    found = candidate.checkpoint
    return f"the checkpoint {found}" if found else "no checkpoint"


def compare(first: Fingerprint, other: Fingerprint) -> str:
    """Return the reason why `other` is refused, or "" if it is accepted. Raises RuntimeError if
    the program is wrong, for example if the job's settings differ."""
    for name, number in first.job.items():
        if (own := other.job.get(name)) != number:
            raise RuntimeError(
                f"{other.name}: {name} is {own}, and {number} on {first.name}. All workers need the"
                " same data and the same numbers"
            )
    if (first.state, first.share) == (other.state, other.share):
        return ""
    difference = first_difference(first.environment, other.environment)
    if not difference and first.state != other.state:
        raise RuntimeError(
            f"{other.name} and {first.name} start from different states"
            f"{_name_part(first, other)}. Seed the random generators before you make the model"
        )
    return (
        f"{other.name} is refused: it computes other bits than {first.name}."
        f" {difference or 'All compared settings are equal, so data or random numbers may differ'}."
        f" {other.name}: {join(other.environment)}. {first.name}: {join(first.environment)}"
    )


def _name_part(first: Fingerprint, other: Fingerprint) -> str:
    part = Digest(first.state, first.parts).first_difference(Digest(other.state, other.parts))
    return part and f": {part}"


def first_difference(first: Mapping[str, str], other: Mapping[str, str]) -> str:
    for name in [*first, *other]:
        values = [each.get(name, "not set") for each in (other, first)]
        if values[0] != values[1]:
            return f"Its {name} is {values[0]}, there it is {values[1]}"
    return ""


def join(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
