# SPDX-License-Identifier: Apache-2.0
"""Checks of each running job for hidden state, which joining workers would not get.

Before the first step each worker computes the reference share twice. The bits differ only if the
program keeps state from the first time. The first share of a worker that has joined is computed by
an older worker, too.

During training, changes of these values from step to step are reported:
- tensors and numbers that are attributes of the model's modules, but not buffers;
- generators in the data set, in the model, and in variables of the program;
- objects with a state_dict, and copies of the parameters, in such variables, unless they are in
  `also`;
- states of callbacks;
- the number of threads.
The comparisons follow steps 2, 4, 8 and so on, so their mean cost is negligible.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from types import FrameType
from typing import Any

from ddl_elastic.hidden.marks import CONTAINERS, is_tensor
from ddl_elastic.hidden.source import is_made_again, locate
from ddl_elastic.hidden.walk import Item, Root, Walk, program_roots

FIRST = 2  # steps until the first comparison
MOST = 3  # maximum number of attributes in a message
THREADS = "number of threads"  # the key in Framework.environment

_DRAW = (
    "Draw from torch, numpy.random or random, which are seeded for each sample, share and step; or"
    " make a generator from one of these each time"
)
_CALLBACK = "In an elastic job use a schedule of the optimizer, or a callback without a state"


class Checks:
    """The checks of one job.

    framework  see ddl_elastic.frameworks.protocol.Framework
    report     called with a sentence about each finding
    """

    def __init__(self, framework: Any, report: Callable[[str], object]) -> None:
        self._framework, self._report = framework, report
        self.callbacks: list[Any] = []
        self._data: list[Any] = []
        self._frame: FrameType | None = None
        self._steps, self._next = 0, FIRST
        self._before: dict[str, tuple[Item, str]] = {}
        self._threads = ""
        self._reported: set[str] = set()

    def begin(self, data: Any, collate: Any, frame: FrameType | None) -> None:
        """Begin a call of `steps`. `frame` and its callers hold the program's variables."""
        self._data, self._frame = [data, collate], frame
        self._steps, self._next, self._before = 0, FIRST, {}
        if not self._threads:
            self._threads = self._count_threads()

    def end(self) -> None:
        """Release the variables at the end of a call of `steps`."""
        self._data, self._frame, self._before = [], None, {}

    def roots(self) -> tuple[Iterable[Root], Iterable[Any]]:
        """Return the roots of the search for hidden state, and the parts of the job's state."""
        data, *collate = self._data or [None]
        found = [Root("data", type(data).__name__, data)]
        found += [Root("data", "collate", each) for each in collate if callable(each)]
        model = getattr(self._framework, "walked", None) or [self._framework.model]
        found += [Root("model", _name(each), each) for each in model]
        found += [Root("callbacks", type(each).__name__, each) for each in self.callbacks]
        found += program_roots(self._frame)
        return found, getattr(self._framework, "held", list)()

    def committed(self) -> None:
        """Count a committed step, and compare the values if a comparison is due after it."""
        self._steps += 1
        if self._steps == 1:  # the objects that the first step creates exist now
            self._before = self._find(self._is_suspect)
        elif self._steps == self._next:
            self._next *= 2
            now = self._find(self._is_suspect)
            for name, (item, mark) in now.items():
                if name in self._before and self._before[name][1] != mark:
                    self._tell(item)
            self._check_threads()

    def marks(self) -> dict[str, tuple[Item, str]]:
        """Return the current marks of the data set's and the model's attributes."""
        return self._find(lambda item: item.room in ("data", "model"))

    def differs(self, before: Mapping[str, tuple[Item, str]]) -> None:
        """Report that the second computation of the reference share has different bits. `before`
        holds the marks that were taken between the two computations."""
        now = self.marks()
        changed = [
            item for name, (item, mark) in now.items() if before.get(name, ("", mark))[1] != mark
        ]
        self._report_items(
            "the share of logical worker 0 has other bits when it is computed again from the same"
            " state and seeds",
            changed,
            "has changed between the two",
        )

    def digests(self) -> dict[str, str]:
        """Return the marks of the data set's and the model's attributes, by attribute name."""
        return {name: mark for name, (_, mark) in self.marks().items()}

    def differs_from(self, text: str, names: Collection[str]) -> None:
        """Report that a worker which has joined computes other bits than an older one. `names` are
        the attributes whose marks in `digests` differ."""
        items = [item for name, (item, _) in self.marks().items() if name in names]
        self._report_items(text, items, "differs between the two")

    def _report_items(self, text: str, items: list[Item], finding: str) -> None:
        """Report items of hidden state, the likeliest first."""
        items.sort(key=lambda item: item.kind != "generator")
        self._reported.update(f"{each.room}:{each.name}" for each in items[:MOST])
        names = ", ".join(_describe(each) for each in items[:MOST])
        advice = advise(items[0].room, items[0].kind, items[0].field) if items else ""
        self._report(
            f"{text}: {names or 'something unknown'}, {finding}, but is not part of the job's"
            f" state. {advice or 'Run `ddl elastic verify`'}"
        )

    def _find(self, is_wanted: Callable[[Item], bool]) -> dict[str, tuple[Item, str]]:
        roots, known = self.roots()
        found: dict[str, tuple[Item, str]] = {}
        for item in Walk(known).items(roots):
            name = f"{item.room}:{item.name}"
            if name not in found and is_wanted(item):
                found[name] = item, item.mark
        return found

    def _is_suspect(self, item: Item) -> bool:
        """Return True if a change of the item probably changes the result, and was not reported."""
        if f"{item.room}:{item.name}" in self._reported:
            return False
        if item.kind in ("generator", "stateful"):
            return True
        if item.room == "model":
            return _is_state(item)
        if item.room == "callbacks":
            return item.kind == "number" and not isinstance(item.value, bool)
        if item.room == "program" and item.kind == "container":
            return self._copies_parameters(item.value) and not is_made_again(item)
        return False

    def _copies_parameters(self, value: Any) -> bool:
        shapes: list[tuple[int, ...]] = getattr(self._framework, "shapes", list)()
        parts = list(value.values() if isinstance(value, Mapping) else value)
        return bool(shapes) and [tuple(each.shape) for each in parts if is_tensor(each)] == shapes

    def _tell(self, item: Item) -> None:
        self._reported.add(f"{item.room}:{item.name}")
        self._report(
            f"{_describe(item)}, changes from step to step, but is not part of the job's state, so"
            f" a worker that joins has another one. {advise(item.room, item.kind, item.field)}"
        )

    @property
    def threads(self) -> tuple[str, str]:
        """The number of threads now and at the start of the job; "" if unknown."""
        return self._count_threads(), self._threads

    def _count_threads(self) -> str:
        return str(self._framework.environment().get(THREADS, ""))

    def _check_threads(self) -> None:
        now = self._count_threads()
        if now != self._threads:
            self._report(
                f"the program has changed the {THREADS} from {self._threads} to {now}: other"
                " numbers have other bits. Give the number as threads= to the job"
            )
            self._threads = now


def _name(value: Any) -> str:
    return getattr(value, "__qualname__", "") or type(value).__name__


def _is_state(item: Item) -> bool:
    """Return True if a model's attribute is probably state."""
    value = item.value
    if item.kind == "number":
        return not isinstance(value, bool) and not item.field.startswith("_")
    if item.kind == "container":
        parts = value.values() if isinstance(value, Mapping) else value
        return any(_is_kept(each) for each in parts)
    return item.kind == "tensor" and _is_kept(value)


def _is_kept(value: Any) -> bool:
    """Return True for a tensor that is not part of a step's graph, so that a later step may use
    it."""
    return is_tensor(value) and getattr(value, "grad_fn", None) is None


def _describe(item: Item) -> str:
    kind = type(item.value)
    package = kind.__module__.split(".")[0]
    owner = getattr(item.owner, "co_name", "") or type(item.owner).__name__
    text = {
        "generator": f"a {package} {kind.__name__} of the program's",
        "stateful": f"an object with a state_dict of class {kind.__name__}",
    }.get(item.kind, "")
    if not text:
        noun = "tensor" if item.kind == "tensor" else kind.__name__
        noun = noun if not isinstance(item.value, CONTAINERS) else f"{kind.__name__}"
        place = (
            "variable" if item.room == "program" and hasattr(item.owner, "co_name") else "attribute"
        )
        text = (
            f"a {noun} and {place} of a {owner}"
            if place == "attribute"
            else f"a {noun}, variable of {owner}"
        )
    where = locate(item)
    return f"{item.name}, {text}" + (f", at {where}" if where else "")


def advise(room: str, kind: str, field: str) -> str:
    """Return advice on how to remove hidden state."""
    if kind == "generator":
        return _DRAW
    if room == "model" and kind == "number":
        return (
            "Compute it from step.number in each step, or make it a buffer:"
            f" self.register_buffer({field!r}, ...)"
        )
    if room == "model":
        return f"Make it a buffer: self.register_buffer({field!r}, ...)"
    if room == "callbacks":
        return _CALLBACK
    if room == "data":
        return "Make each sample a function of its index and of the seeded generators alone"
    if kind == "stateful":
        return f'Give it as also={{"{field}": {field}}}'
    return (
        "Keep it in an object with state_dict and load_state_dict, and give that as"
        f" also={{{field!r}: ...}}"
    )
