# SPDX-License-Identifier: Apache-2.0
"""The search for the first difference between a run and the reference run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ddl_elastic.verify.records import RunRecords, WorkerRecords

BATCH, GRADIENT, LOSS, STATE = "batch", "gradient", "loss", "state"


@dataclass(frozen=True)
class Difference:
    """The first difference of a run from the reference run.

    what    batch, gradient, loss or state
    tensor  the name of the tensor in the gradients or in the state
    share   the logical worker, or -1 for the whole step
    """

    run: str
    step: int
    member: int
    share: int
    what: str
    tensor: str
    reference: WorkerRecords
    other: WorkerRecords

    @property
    def key(self) -> tuple[int, ...]:
        """The key of the digest in the records."""
        return (self.step,) if self.share < 0 else (self.step, self.share)

    def __str__(self) -> str:
        share = f"the share of logical worker {self.share}, " if self.share >= 0 else ""
        thing = {
            BATCH: "its batch",
            GRADIENT: f"its gradient of {self.tensor}"
            if self.tensor
            else "its buffers or its loss",
            LOSS: "the loss",
            STATE: f"the state after it, tensor {self.tensor}",
        }[self.what]
        return f"step {self.step}, {share}worker {self.member} of the run {self.run}: {thing}"


def first_difference(reference: RunRecords, other: RunRecords) -> Difference | None:
    """Return the first step, share and tensor whose bits differ from the reference run, or None.
    The reference run has a single worker."""
    alone = reference.workers[0]
    found = [each for worker in other.workers for each in _differences(other.name, alone, worker)]
    return min(found, key=lambda each: (each.step, each.share < 0, each.share), default=None)


def _differences(run: str, alone: WorkerRecords, other: WorkerRecords) -> Iterator[Difference]:
    """Yield the first difference in the shares, and the first one in the steps."""
    for key in sorted(other.shares.keys() & alone.shares.keys()):
        one, two = alone.shares[key], other.shares[key]
        is_batch = one["batch"] != two["batch"]
        tensor = first_name(one["tensors"], two["tensors"])
        if is_batch or tensor:
            what = BATCH if is_batch else GRADIENT
            yield Difference(run, *(key[0], other.member, key[1]), what, tensor, alone, other)
            break
    for step in sorted(other.steps.keys() & alone.steps.keys()):
        first, second = alone.steps[step], other.steps[step]
        if first["loss"] != second["loss"]:
            yield Difference(run, step, other.member, -1, LOSS, "", alone, other)
            break
        if tensor := first_name(first["state"], second["state"]):
            yield Difference(run, step, other.member, -1, STATE, tensor, alone, other)
            break


def first_name(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Return the first name whose value differs, in the order of the first mapping, or ""."""
    names = [*one, *(each for each in other if each not in one)]
    return next((each for each in names if one.get(each) != other.get(each)), "")
