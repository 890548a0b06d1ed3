# SPDX-License-Identifier: Apache-2.0
"""State of a program that a joining worker does not get: found by its change between two steps.

What is looked at when a call of `steps` begins:
- tensors that are attributes of the model's modules, but neither parameters nor buffers;
- generators in attributes of the data set and of the model's modules, and in variables of the
  function that calls `steps` and of its module;
- objects in such variables that have a state_dict and are not in `also`.
Each is compared with what it was after steps 2, 4, 8 and so on, so it costs nothing in the mean.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

FIRST = 2  # steps until the first comparison
DEPTH = 4  # of a data set in which others are
COMPARED = 16 << 20  # bytes of a tensor whose values are compared; else whether it was written to


@dataclass
class Suspect:
    """Something that may change: its name, what it is now, and why a change is wrong."""

    name: str
    read: Callable[[], Any]
    advice: str
    before: Any = None


class Hidden:
    """Looks for hidden state of one job.

    known   what has a state_dict and is part of the job's state, besides the model
    report  is called with a sentence about each change
    """

    def __init__(
        self, model: nn.Module, known: Iterable[Any], report: Callable[[str], object]
    ) -> None:
        self._model, self._known, self._report = model, list(known), report
        self._suspects: list[Suspect] = []
        self._steps, self._next = 0, FIRST
        self._data: Any = None
        self._names: dict[str, Any] = {}  # of the caller of `steps`

    def begin(self, data: Any, frame: FrameType | None) -> None:
        """A call of `steps` with this data begins in this frame."""
        self._data = data
        self._names = {**frame.f_globals, **frame.f_locals} if frame else {}
        self._suspects, self._steps, self._next = [], 0, FIRST

    def committed(self) -> None:
        """Compare, if it is due after this step."""
        self._steps += 1
        if self._steps == 1:  # what the first step makes is there
            self._suspects = [
                *_attributes(self._model),
                *_generators(_data_fields(self._data)),
                *_generators(_module_fields(self._model)),
                *_generators(self._names),
                *self._objects(self._names),
            ]
            self._data, self._names = None, {}
            for each in self._suspects:
                each.before = each.read()
        elif self._steps == self._next:
            self._next *= 2
            for each in [*self._suspects]:
                if not _equal(each.before, each.read()):
                    self._suspects.remove(each)
                    self._report(
                        f"{each.name} changes from step to step, but is not part of the job's"
                        f" state, so a worker that joins has another one. {each.advice}"
                    )

    def _objects(self, names: Mapping[str, Any]) -> Iterator[Suspect]:
        tensors = {each.data_ptr() for each in _tensors(self._model)}
        known = {id(each) for each in self._known}
        for name, value in names.items():
            is_stateful = hasattr(value, "state_dict") and hasattr(value, "load_state_dict")
            if not is_stateful or isinstance(value, type) or id(value) in known:
                continue
            if isinstance(value, nn.Module) and {t.data_ptr() for t in _tensors(value)} <= tensors:
                continue  # the model, a part of it, or compiled
            kind = type(value).__name__
            yield Suspect(
                f"{name}, an object with a state_dict of class {kind},",
                lambda v=value: _mark(v.state_dict()),
                f'Give it as also={{"{name}": {name}}}',
            )


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _attributes(model: nn.Module) -> Iterator[Suspect]:
    for prefix, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor):
                kind = type(module).__name__
                yield Suspect(
                    f"{f'{prefix}.{name}'.lstrip('.')}, a tensor and attribute of a {kind},",
                    lambda m=module, n=name: _mark(getattr(m, n, None)),
                    f"Make it a buffer: self.register_buffer({name!r}, ...)",
                )


def _module_fields(model: nn.Module) -> dict[str, Any]:
    return {
        f"{type(module).__name__}.{name}": value
        for module in model.modules()
        for name, value in vars(module).items()
    }


def _data_fields(data: Any) -> dict[str, Any]:
    """Return the attributes of a data set, and of those that it is made of."""
    found: dict[str, Any] = {}
    for _ in range(DEPTH):
        fields = getattr(data, "__dict__", {})
        found.update({f"{type(data).__name__}.{name}": each for name, each in fields.items()})
        data = fields.get("dataset")
    return found


def _generators(named: Mapping[str, Any]) -> Iterator[Suspect]:
    reads: dict[type, Callable[[Any], Any]] = {
        np.random.Generator: lambda each: each.bit_generator.state,
        np.random.RandomState: lambda each: each.get_state(),
        torch.Generator: lambda each: each.get_state().clone(),
        random.Random: lambda each: each.getstate(),
    }
    for name, value in named.items():
        for kind, read in reads.items():
            if isinstance(value, kind):
                yield Suspect(
                    f"{name}, a {kind.__module__.split('.')[0]} {kind.__name__} of the program's,",
                    lambda r=read, v=value: r(v),
                    "Draw from torch, numpy.random or random, which are seeded for each sample,"
                    " share and step; or make a generator from one of these each time",
                )


def _mark(value: Any) -> Any:
    """Return what tells a change of values without a copy of the tensors."""
    if isinstance(value, Tensor):
        if value.is_cpu and not value.is_sparse and value.nbytes <= COMPARED:
            data = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
            return tuple(value.shape), zlib.crc32(data.data)
        return tuple(value.shape), value.data_ptr(), value._version
    if isinstance(value, Mapping):
        return {key: _mark(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_mark(each) for each in value]
    return value if isinstance(value, bool | int | float | str | None) else None


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, np.ndarray | Tensor):
        return bool((one == other).all())
    return bool(one == other)
