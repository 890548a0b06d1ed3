# SPDX-License-Identifier: Apache-2.0
"""What ddl_elastic needs of a framework. Each has its half: ddl_torch.elastic, ...

A share is the work of one logical worker in one step. It starts from the committed state with
generators seeded for it. What it computed are flat arrays: the gradients, what it changed in
buffers such as batch norm's, and numbers such as the loss. Only their averages over all logical
workers are applied. So everything is a function of the step.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol, cast

import numpy.typing as npt

Array = npt.NDArray[Any]  # contiguous, of one dimension
Key = tuple[int, int]  # a share: its step and its logical worker
Share = Sequence[Array]  # in the order in which they are complete
Ready = Callable[
    [Share, int], None
]  # told that so many arrays of a share are complete, not yet all


@dataclass(frozen=True)
class Tensor:
    """A tensor of the state, on its way between processes."""

    dtype: str  # the framework's name for it
    shape: tuple[int, ...]
    data: Array  # its bytes


State = dict[str, Tensor]
# The names in a state of what decides the next step but is no value that training computes, such as
# whether a parameter is trained. Only one rank may have changed it for an evaluation when states
# are compared, so digests are without it.
MODE = "mode."


def is_mode(name: str) -> bool:
    """Return whether digests are without this part of a state."""
    return name.startswith(MODE)


@dataclass(frozen=True)
class Digest:
    """Of a state: the SHA-256 of all names and values, and the beginnings of what it was after each
    of the first parts. It tells which is the first part that differs from another state's."""

    whole: str
    parts: dict[str, str]

    def first_difference(self, other: Digest) -> str:
        """Says which part it is; empty if it is not known."""
        names = sorted({*self.parts, *other.parts})
        part = next((n for n in names if self.parts.get(n) != other.parts.get(n)), "")
        shown = {"group": "the optimizer's settings", "slot": "the optimizer's state"}
        return f"the first part that differs is {shown.get(part, part)}" if part else ""


_PARTS, _PART_NAME, _PART_DIGEST = 16, 40, 16  # at most: parts, and characters of them


def digest_parts(state: State) -> Digest:
    found, parts = hashlib.sha256(), dict[str, str]()
    for part, names in groupby(sorted(each for each in state if not is_mode(each)), _part):
        for name in names:
            tensor = state[name]
            found.update(f"{name} {tensor.dtype} {tensor.shape}\n".encode())
            found.update(tensor.data.data)
        if len(parts) < _PARTS:
            parts[part[:_PART_NAME]] = found.hexdigest()[:_PART_DIGEST]
    return Digest(found.hexdigest(), parts)


def _part(name: str) -> str:
    """Of the state, that a tensor belongs to: "model", "also.schedule", ..."""
    kind, _, rest = name.partition(".")
    return f"{kind}.{rest.split('.')[0]}" if kind == "also" else kind


def digest(state: State) -> str:
    """The SHA-256 of all names and values."""
    return digest_parts(state).whole


def check_weight(weight: float) -> float:
    """Of one share's loss. Returns it; raises ValueError."""
    if not 0 <= weight < math.inf:
        raise ValueError(f"weight is {weight}; it must be 0 or more, and finite")
    return weight


def check_total(weight: float) -> float:
    """Of all shares of a step together. Returns it; raises ValueError."""
    if weight <= 0:
        raise ValueError("all shares of a step have weight 0, so their losses have no mean")
    return weight


class Batches(Protocol):
    """Reads the batch of a share, as ddl_elastic.shares.loading.Reader does."""

    def __getitem__(self, key: Key, /) -> Any: ...


class Summed(Protocol):
    """What is agreed on in a step: arrays that are made of those of all logical workers.

    It may have a method `add` as well, which is then called instead of partial.add_arrays: for
    shares whose arrays are made only when somebody takes them.
    """

    def result(self) -> Share:
        """A step starts: arrays as a share has them, which will hold its result. They stay the
        framework's, which may return the same ones for each step."""

    def ops(self) -> Sequence[str]:
        """How each of these arrays is made from those of all shares: "average" or "sum"."""

    def free(self, share: Share) -> None:
        """Nobody uses a share's arrays any more: another share may have them."""


class Framework(Summed, Protocol):
    """One model and its optimizer, in the hands of one framework."""

    model: Any
    loss: float  # the last applied step's, averaged over its shares

    def seed(self, seed: int) -> None:
        """Seed all generators of the framework, of NumPy and of Python. 64 bits."""

    def collate(self, samples: Sequence[Any]) -> Any:
        """The samples of a share as a batch."""

    def reading(self) -> AbstractContextManager[None]:
        """Around the reading of samples in this process: as loader processes have it."""

    def prefetch(self, batches: Batches, keys: Iterable[Key], processes: int) -> Iterator[Any]:
        """batches[key] for each of the keys, in their order, read ahead by so many processes. They
        ask for the next key when they have room. They end with this process, and when the iterator
        is dropped."""

    def begin(self, worker: int) -> None:
        """The share of a logical worker starts: there are no gradients, and buffers have their
        committed values."""

    def backward(self, loss: Any, ready: Ready | None = None, weight: Any = 1.0) -> Share:
        """Compute the gradients of a share's loss. Returns what the share computed. May call
        `ready` meanwhile. `apply` divides the sums of all losses and gradients by that of the
        weights."""

    def tensors(self, share: Share) -> Iterable[tuple[str, Array]]:
        """Return what a share has computed, by name, as contiguous arrays of any shape: before the
        share is added to others."""

    def apply(self) -> None:
        """The arrays of `result` hold it: set the gradients and advance the buffers."""

    def run(self, batch: Any, ready: Ready | None = None) -> Share:
        """Compute a share where the user has no loop: model, loss, backward."""

    def evaluating(self) -> AbstractContextManager[None]:
        """Around an evaluation: no gradients are computed, and the model is in its mode for it."""

    def environment(self) -> dict[str, str]:
        """What the bits of a share may depend on besides the program, the likeliest first: versions
        of libraries, the kind of the processor, the number of threads."""

    def update(self) -> None:
        """Step the optimizer and the schedule where the user has no loop."""

    def state(self) -> State:
        """Parameters, buffers and the optimizer's state, by name. What a share changes, as buffers
        are, is copied; the rest may be the memory itself, which `update` or the program changes."""

    def load(self, state: State) -> None:
        """Set all of these. Raises ValueError for a state that is not this model's."""


class AdapterModule(Protocol):
    """The elastic module of a framework's adapter. Its class `Half` makes Frameworks."""

    Half: Any

    def preload(self) -> None:
        """Import all that training needs, before workers are forked. Starts no thread."""

    def pin(self, threads: int) -> None:
        """Fix what would change the bits of a share: threads, choices of algorithms."""

    def seed(self, seed: int) -> None:
        """As Framework.seed."""


# The top-level package that a model's class, or a class it derives from, is defined in.
ADAPTERS = {
    "keras": "ddl_keras.elastic",
    "tensorflow": "ddl_tensorflow.elastic",
    "torch": "ddl_torch.elastic",
    "jax": "ddl_jax.elastic",
}


def loaded_adapters() -> list[AdapterModule]:
    """Return the adapters of the frameworks that this process has imported."""
    return [_import(adapter) for package, adapter in ADAPTERS.items() if package in sys.modules]


def find_adapter(model: Any) -> AdapterModule:
    """Return the adapter for the framework of `model`. Raises TypeError for other models."""
    for each in type(model).__mro__:
        package = each.__module__.split(".")[0]
        if package in ADAPTERS:
            return _import(ADAPTERS[package])
    raise TypeError(
        f"model is a {type(model).__module__}.{type(model).__qualname__}; elastic training knows"
        f" models of {', '.join(ADAPTERS)}"
    )


def _import(name: str) -> AdapterModule:
    return cast("AdapterModule", importlib.import_module(name))
