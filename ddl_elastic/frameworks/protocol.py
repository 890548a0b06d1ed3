# SPDX-License-Identifier: Apache-2.0
"""The interface between ddl_elastic and the adapters of frameworks, such as ddl_torch.elastic.

A share is the work of one logical worker in one step. It starts from the committed state, with
generators seeded for it. Its result is flat arrays: gradients, changes of buffers such as batch
norm's, and numbers such as the loss. Only the averages over all logical workers are applied. The
new state therefore depends only on the step, not on the ranks.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any, Protocol, cast, runtime_checkable

import numpy.typing as npt

Array = npt.NDArray[Any]  # contiguous, of one dimension
Key = tuple[int, int]  # identifies a share: (step, logical worker)
Share = Sequence[Array]  # in the order in which the arrays are completed
Ready = Callable[
    [Share, int], None
]  # called with a share and the number of its arrays that are complete


@dataclass(frozen=True)
class Tensor:
    """A tensor of the state in a form that can be sent between processes."""

    dtype: str  # the framework's name for it
    shape: tuple[int, ...]
    data: Array  # the tensor's bytes
    begin: int = 0  # the position of `data` in the tensor's bytes, in a PartialState


State = dict[str, Tensor]


class PartialState(State):
    """The part of a state that one rank writes to a checkpoint. The other ranks write the rest."""


class StreamedState(State):
    """A state with additional tensors that the functions in `sources` make only when they are
    read."""

    def __init__(self, state: State, sources: dict[str, Callable[[], Tensor]]) -> None:
        super().__init__(state)
        self.sources = sources

    def __iter__(self) -> Iterator[str]:
        return chain(super().__iter__(), self.sources)

    def __missing__(self, name: str) -> Tensor:
        return self.sources[name]()


# The prefix of state entries that affect the next step but are not computed by training, such as
# whether a parameter is trained. Digests omit them, because a rank may have changed them for an
# evaluation.
MODE = "mode."


def is_mode(name: str) -> bool:
    """Return True if digests omit this entry of a state."""
    return name.startswith(MODE)


@dataclass(frozen=True)
class Digest:
    """The digest of a state: the SHA-256 of all names and values. `parts` maps the names of up to
    16 parts to a prefix of the hash of everything up to and including that part. These entries show
    the first part in which two states differ."""

    whole: str
    parts: dict[str, str]

    def first_difference(self, other: Digest) -> str:
        """Return a text that names the first part that differs, or "" if it is unknown."""
        names = sorted({*self.parts, *other.parts})
        part = next((n for n in names if self.parts.get(n) != other.parts.get(n)), "")
        shown = {"group": "the optimizer's settings", "slot": "the optimizer's state"}
        return f"the first part that differs is {shown.get(part, part)}" if part else ""


_PARTS, _PART_NAME, _PART_DIGEST = 16, 40, 16  # at most; lengths in characters


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
    """Return the name of the part of the state to which the tensor of this name belongs, such as
    "model" or "also.schedule"."""
    kind, _, rest = name.partition(".")
    return f"{kind}.{rest.split('.')[0]}" if kind == "also" else kind


def digest(state: State) -> str:
    """Return the SHA-256 of a state's names and values, without its MODE entries."""
    return digest_parts(state).whole


def check_weight(weight: float) -> float:
    """Return the weight of a share's loss. Raises ValueError if it is negative or not finite."""
    if not 0 <= weight < math.inf:
        raise ValueError(f"weight is {weight}; it must be 0 or more, and finite")
    return weight


def check_total(weight: float) -> float:
    """Return the total weight of a step's shares. Raises ValueError if it is 0."""
    if weight <= 0:
        raise ValueError("all shares of a step have weight 0, so their losses have no mean")
    return weight


class Batches(Protocol):
    """A mapping from a share's key to its batch, such as ddl_elastic.shares.loading.Reader."""

    def __getitem__(self, key: Key, /) -> Any: ...


class Summed(Protocol):
    """Arrays that a step computes from the arrays of all logical workers.

    An implementation may have a method `add`, which replaces partial.add_arrays. It is for shares
    whose arrays are computed only when they are accessed.
    """

    def result(self) -> Share:
        """Return the arrays for the result of the step that starts, in the layout of a share. The
        framework owns them, and may return the same ones for each step."""

    def ops(self) -> Sequence[str]:
        """Return for each array how the shares are combined: "average", "sum", or for an average
        in a wire format its name."""

    def free(self, share: Share) -> None:
        """Release a share's arrays, which another share may then use."""


class Framework(Summed, Protocol):
    """A model and its optimizer in one framework."""

    model: Any
    loss: float  # of the last applied step, averaged over its shares

    def seed(self, seed: int) -> None:
        """Seed all generators of the framework, of NumPy and of Python with a 64-bit seed."""

    def collate(self, samples: Sequence[Any]) -> Any:
        """Return the samples of a share as a batch."""

    def reading(self) -> AbstractContextManager[None]:
        """Return a context in which this process reads samples like a loader process."""

    def prefetch(self, batches: Batches, keys: Iterable[Key], processes: int) -> Iterator[Any]:
        """Yield batches[key] for each key in order, read ahead by `processes` processes. A process
        takes the next key when it has room. The processes exit with this process, or when the
        iterator is dropped."""

    def begin(self, worker: int) -> None:
        """Start the share of a logical worker: clear the gradients and restore the committed values
        of the buffers."""

    def backward(self, loss: Any, ready: Ready | None = None, weight: Any = 1.0) -> Share:
        """Compute the share of a loss, and return it. May call `ready` during the computation.
        `apply` later divides the sums of the losses and gradients by the sum of the weights."""

    def tensors(self, share: Share) -> Iterable[tuple[str, Array]]:
        """Return the arrays of a share by name, contiguous and of any shape. Must be called before
        the share is added to other shares."""

    def apply(self) -> None:
        """Set the gradients and update the buffers from the arrays of `result`."""

    def run(self, batch: Any, ready: Ready | None = None) -> Share:
        """Compute a share in a job without a custom loop: model, loss, backward."""

    def evaluating(self) -> AbstractContextManager[None]:
        """Return a context for evaluation: no gradients, and the model in evaluation mode."""

    def environment(self) -> dict[str, str]:
        """Return settings on which the bits of a share may depend, the most likely ones first:
        versions of libraries, type of the processor, number of threads."""

    def update(self) -> None:
        """Step the optimizer and the schedule in a job without a custom loop."""

    def state(self) -> State:
        """Return the parameters, buffers and optimizer state by name. Values that a share changes,
        such as buffers, are copies; the others may share memory with the model."""

    def load(self, state: State) -> None:
        """Set the model and optimizer to a state. Raises ValueError if it does not fit them."""


@runtime_checkable
class LocalFramework(Framework, Protocol):
    """A framework whose shares may be runs of local steps, see ddl_elastic.worker.rounds."""

    def set_outer(self, outer: Any, moments: Any, wire: str | None) -> None:
        """Set the outer optimizer of the next rounds, the moments with which shares start, and the
        wire format of the averages. If `outer` is None, keep the outer optimizer, or create the
        default one."""

    def set_local(self, is_local: bool) -> None:
        """Set whether the next shares are runs of local steps."""

    def begin_local(self) -> None:
        """Start the local steps of the share that `begin` has started. The next call of `begin` or
        `step_outer` undoes the changes by these steps."""

    def backward_local(self, loss: Any, weight: Any = 1.0) -> None:
        """Compute the gradients of one local step, whose loss is loss / weight."""

    def run_local(self, batch: Any) -> None:
        """Take a local step in a job without a custom loop."""

    def end_local(self) -> Share:
        """Return a share whose gradients are the parameters before the local steps minus the
        parameters after them."""

    def step_outer(self) -> None:
        """Step the outer optimizer with the gradients that `apply` has set."""


class AdapterModule(Protocol):
    """The elastic module of a framework's adapter. Its class `Adapter` implements Framework."""

    Adapter: Any

    def preload(self) -> None:
        """Import all modules for training, before workers are forked. Must not start a thread."""

    def pin(self, threads: int) -> None:
        """Fix the settings that change the bits of a share: threads, choice of algorithms."""

    def seed(self, seed: int) -> None:
        """Seed all generators, see Framework.seed."""


# The key is the top-level package that defines the model's class or one of its base classes.
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
