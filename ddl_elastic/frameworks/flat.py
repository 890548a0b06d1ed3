# SPDX-License-Identifier: Apache-2.0
"""The common part of the adapters that represent tensors as NumPy arrays.

The tensors of a share are stored one after the other in a few flat arrays, one for each type of
addition. The arrays of a share are complete at the same time, so its sums start only then.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ddl_elastic.frameworks import protocol
from ddl_elastic.frameworks.protocol import Array, Batches, Key, State, Tensor

Values = npt.NDArray[Any]  # of any shape

# The type in which tensors are added. Half types are rounded only once, at the end.
WIDE = {"float16": "float32", "bfloat16": "float32", "float32": "float32", "float64": "float64"}

_LOSS = f"{protocol.MODE}loss"  # in a state


def seed(seed: int) -> None:
    """Seed the generators of NumPy and of Python with a 64-bit seed."""
    np.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


@dataclass(frozen=True)
class Spec:
    """One of the tensors of a share."""

    shape: tuple[int, ...]
    dtype: Any  # a NumPy dtype
    op: str = "average"  # over all logical workers: "average" or "sum"
    name: str = ""

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def kind(self) -> tuple[str, str]:
        """The type and operation of the flat array that holds the tensor."""
        name = np.dtype(self.dtype).name
        is_integer = name.startswith(("int", "uint"))
        if name not in WIDE and not is_integer:
            raise NotImplementedError(f"elastic training does not support tensors of {name}")
        return WIDE.get(name, "int64"), self.op


class FlatShare(list[Array]):
    """The arrays of a share, or of the result of a step.

    parts    the values of each tensor, in its shape
    numbers  the loss and its weight
    """

    def __init__(self, specs: Sequence[Spec]) -> None:
        kinds = [each.kind for each in specs]
        averaged = [kind for kind in kinds if kind[1] == "average" and kind[0] != "int64"]
        specs = [*specs, Spec((2,), averaged[0][0] if averaged else "float64")]
        sizes: dict[tuple[str, str], int] = {}
        for each in specs:
            sizes[each.kind] = sizes.get(each.kind, 0) + each.size
        arrays = {kind: np.empty(size, kind[0]) for kind, size in sizes.items()}
        super().__init__(arrays.values())
        self.ops = [op for _, op in arrays]
        *self.parts, self.numbers = _cut(arrays, specs)


def _cut(arrays: Mapping[tuple[str, str], Array], specs: Iterable[Spec]) -> Iterator[Values]:
    ends = dict.fromkeys(arrays, 0)
    for each in specs:
        begin = ends[each.kind]
        ends[each.kind] = begin + each.size
        yield arrays[each.kind][begin : begin + each.size].reshape(each.shape)


class Flat:
    """The base class of adapters, see ddl_elastic.frameworks.protocol.Framework."""

    loss = float("nan")
    weight = 1.0  # mean weight of the step's shares

    def lay_out(self, specs: Sequence[Spec]) -> None:
        """Set the tensors of which each share consists."""
        self._specs = list(specs)
        self._free: list[FlatShare] = []  # shares for reuse
        self._result = FlatShare(self._specs)

    def take(self, tensors: Iterable[Values], loss: Any, weight: Any = 1.0) -> FlatShare:
        """Return a share with copies of these tensors and numbers."""
        share = self._free.pop() if self._free else FlatShare(self._specs)
        for part, tensor in zip(share.parts, tensors, strict=True):
            part[...] = tensor
        share.numbers[:] = float(loss), protocol.check_weight(float(weight))
        return share

    def results(self) -> list[Values]:
        """Return the result's tensors in their own types, as copies. The caller must divide
        gradients by `weight`."""
        self.weight = protocol.check_total(float(self._result.numbers[1]))
        self.loss = float(self._result.numbers[0]) / self.weight
        pairs = zip(self._result.parts, self._specs, strict=True)
        return [part.astype(spec.dtype) for part, spec in pairs]

    def add_loss(self, state: State) -> State:
        """Return the state with the last step's loss, so that it is the same on joining ranks and
        after a resume."""
        return state | pack({_LOSS: np.float64(self.loss)})

    def load_loss(self, state: State) -> None:
        """Set the loss to that of a state."""
        found = state.get(_LOSS)
        self.loss = float(found.data.view(np.float64)[0]) if found else float("nan")

    # ---- methods of Framework ----

    def result(self) -> FlatShare:
        return self._result

    def ops(self) -> Sequence[str]:
        return self._result.ops

    def tensors(self, share: protocol.Share) -> Iterator[tuple[str, Values]]:
        assert isinstance(share, FlatShare)
        for number, (spec, part) in enumerate(zip(self._specs, share.parts, strict=True)):
            yield f"{number} {spec.name}".rstrip(), part  # names may be equal
        yield "loss", share.numbers

    def free(self, share: protocol.Share) -> None:
        assert isinstance(share, FlatShare)
        self._free.append(share)

    def collate(self, samples: Sequence[Any]) -> Any:
        return stack(samples)

    def reading(self) -> AbstractContextManager[None]:
        return nullcontext()

    def evaluating(self) -> AbstractContextManager[None]:
        return nullcontext()

    def prefetch(self, batches: Batches, keys: Iterable[Key], processes: int) -> Iterator[Any]:
        raise NotImplementedError(
            f"loader_workers is {processes}; with this framework each process reads its samples"
            " itself: set it to 0"
        )


def stack(samples: Sequence[Any]) -> Any:
    """Return the samples as a batch of NumPy arrays. A sample is a number, an array, or a tuple,
    list or dictionary of samples."""
    first = samples[0]
    if isinstance(first, Mapping):
        return {name: stack([each[name] for each in samples]) for name in first}
    if isinstance(first, tuple | list):
        return tuple(stack(parts) for parts in zip(*samples, strict=True))
    return np.stack([np.asarray(each) for each in samples])


def check_trained(before: Mapping[int, str], now: Mapping[int, str]) -> None:
    """Raise RuntimeError if the trained variables have changed since the job's start, which fixed
    the arrays of shares. Both arguments map the id of a variable to its name."""
    if before.keys() != now.keys():
        frozen = sorted(name for key, name in before.items() if key not in now)
        added = sorted(name for key, name in now.items() if key not in before)
        changes = [f"{', '.join(n)} {w}" for n, w in ((frozen, "frozen"), (added, "unfrozen")) if n]
        raise RuntimeError(
            f"the trained variables have changed since the job began: {'; '.join(changes)}. Freeze"
            " and unfreeze layers before an elastic job, and train again in another one"
        )


# ---- the state ----


def pack(values: Mapping[str, Any]) -> State:
    """Return a state with these arrays."""
    return {name: _pack(np.asarray(value, order="C")) for name, value in values.items()}


def _pack(value: Values) -> Tensor:
    return Tensor(value.dtype.name, value.shape, value.reshape(-1).view(np.uint8))


def unpack(state: State, specs: Mapping[str, Any]) -> dict[str, Values]:
    """Return the arrays of a state, without the loss. Raises ValueError unless names, shapes and
    dtypes fit."""
    state = {name: tensor for name, tensor in state.items() if name != _LOSS}
    if state.keys() != specs.keys():
        names = sorted(state.keys() ^ specs.keys())
        raise ValueError(f"the state is not this model's: only one of them has {', '.join(names)}")
    found = {}
    for name, tensor in state.items():
        shape, dtype = tuple(specs[name].shape), np.dtype(specs[name].dtype)
        if (tensor.shape, tensor.dtype) != (shape, dtype.name):
            raise ValueError(
                f"the state is not this model's: {name} is {tensor.dtype} {tensor.shape}, here"
                f" {dtype.name} {shape}"
            )
        found[name] = tensor.data.view(dtype).reshape(shape)
    return found
